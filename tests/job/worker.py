"""One worker of the job in test_distributed.py: checks, each on all ranks together.

Usage: worker.py NAME...   (names of functions in checks_of_*.py; `all` for every one)
"""

from __future__ import annotations

import sys

from tests.job.trained import engine  # isort: skip - it starts the engine

from tests.job import checks_of_fit, checks_of_numbers  # noqa: F401
from tests.workers import run

if __name__ == "__main__":
    run(engine, sys.argv[1:])
