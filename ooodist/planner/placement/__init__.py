"""Places the ranks of pipelines on hosts with several devices."""
