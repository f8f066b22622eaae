"""How the processes of an engine are started: a module for each way (``Kind.starter``).

Each has a function ``start(kind, places, cleaner, resources)``, which gets the engine's kind, where
its processes run, what is cleaned up at the end of the job, and what has to live as long as it. It
returns the variables of each worker, and the processes that start before them. In a task of a Slurm
step, only some of these are started there (``Host.is_here``).

It raises UserError if the engine is not installed, hosts cannot be reached, or a port is taken.
"""
