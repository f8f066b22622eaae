"""Pipeline parallelism: stages of a model on several devices, with B and W separate."""
