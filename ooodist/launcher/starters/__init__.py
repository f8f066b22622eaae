"""How the processes of an engine are started: a module for each way (``Kind.starter``).

Each has two functions, which get the engine's kind, what is cleaned up at the end of the job, and
what has to live as long as it:

``start(kind, places, cleaner, resources)``
    for a launcher that starts all processes: the variables of each worker, and the processes that
    start before them.
``start_in_task(kind, task, host, cleaner, resources)``
    for a launcher in each task of a Slurm step: the variables of its worker, and the processes that
    start before it.

Both raise UserError if the engine is not installed, hosts cannot be reached, or a port is taken.
"""
