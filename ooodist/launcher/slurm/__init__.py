"""Jobs under Slurm: each task of a step finds its place and starts its rank."""
