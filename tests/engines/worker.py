"""One rank of the tests on real engines: ``python worker.py ENGINE SIZE [CHECK …]``.

All ranks run all checks, or those that are named; the process ends with 0 if all of them hold.
"""

import os
import sys
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import checks_in_graph
import checks_of_arrays
import pytest

from ooodist import engines
from ooodist.errors import UserError


def main(name: str, size: int, wanted: list[str]) -> None:
    """Runs the checks and shuts down."""
    engine = engines.init("auto", workers=size)
    assert (engine.name, engine.size) == (name, size)
    for check, function in (vars(checks_in_graph) | vars(checks_of_arrays)).items():
        if check.startswith("check_") and (not wanted or check in wanted):
            function(engine)
            if engine.rank == 0:
                print("held:", check, flush=True)
    engines.shutdown()
    engines.shutdown()
    with pytest.raises(UserError, match="no engine is in use"):
        engines.current()
    with pytest.raises(UserError, match="start a new process"):
        engines.init()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    except BaseException:
        traceback.print_exc()
        engines.abort(1)
