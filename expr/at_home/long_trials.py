"""python -m ooodist.train whose trials are long enough to tell how good predictions are.

    python launch/local.py -np 2 -- python expr/at_home/long_trials.py 40 --set order.name=planned

The first argument is the number of rounds, in each of which all plans have a turn, however slow
they are; the others are those of ooodist.train. A trial of a usual training has 4 to 12 rounds.
"""

from __future__ import annotations

import runpy
import sys

from ooodist.trainer import trial

if __name__ == "__main__":
    trial.ROUNDS = trial.MOST_ROUNDS = int(sys.argv.pop(1))
    trial.BEHIND = float("inf")
    runpy.run_module("ooodist.train", run_name="__main__", alter_sys=True)
