"""Reads the variables of launchers."""

from __future__ import annotations

from collections.abc import Mapping

from ooodist.errors import UserError

SLURM_SIZE = "SLURM_STEP_NUM_TASKS"
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # of Slurm: batch scripts, interactive shells


def number(environ: Mapping[str, str], variable: str) -> int:
    """Reads a number of workers. Raises UserError if it is none."""
    text = environ.get(variable, "")
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"{variable} is {text!r}; it must be the number of workers, from 1")
    return int(text)


def slurm_tasks(environ: Mapping[str, str]) -> int:
    """How many processes srun has started together with this one; 0 if it has not."""
    step = environ.get("SLURM_STEP_ID", "")
    if SLURM_SIZE not in environ or (step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP):
        return 0  # the shell of salloc has the variables of its allocation alone
    return number(environ, SLURM_SIZE)
