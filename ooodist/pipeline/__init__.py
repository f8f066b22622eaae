"""Pipeline parallelism: stages of a model on several devices, with I and W separate."""
