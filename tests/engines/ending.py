"""One rank that ends in a certain way: ``python ending.py HOW RANK``.

All ranks exchange once. Then rank RANK does what HOW says, and the others go on exchanging.
"""

import os
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from ooodist import engines
from ooodist.engines import byteps


def main(how: str, is_the_one: bool) -> None:
    """Ends the process, with code 0 if ``how`` is "cleanly" or "without_shutdown"."""
    if how == "absent" and is_the_one:
        time.sleep(60)
    if how == "exit":  # others wait for it as it ends
        byteps.LEAVE_SECONDS = 3.0
    engine = engines.init(timeout=3 if how == "absent" else 60)

    @tf.function
    def exchange(tensor):
        return [engine.sum_in_graph(tensor, f"tensor{i}") for i in range(4)]

    start = time.monotonic()
    try:  # around the first exchange too: who has its sum may die before others have theirs
        exchange(tf.ones([1000]))
        if how == "cleanly":
            time.sleep(1 if is_the_one else 0)
            engines.shutdown()
            time.sleep(3 if is_the_one else 0)
            return
        if how == "without_shutdown":
            time.sleep(2 if is_the_one else 0)
            return
        if is_the_one:
            end(how)
        while True:
            exchange(tf.ones([1000]))
    except tf.errors.OpError as error:
        seconds = time.monotonic() - start
        print(f"the exchange failed after {seconds:.1f} s: {error.message[-200:]}", flush=True)
        raise


def end(how: str) -> None:
    """Ends this process badly."""
    if how == "raise":
        raise ValueError("a mistake in the program")
    if how == "exit":
        sys.exit(5)
    if how == "abort":
        engines.abort(5)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], os.environ["OOODIST_RANK"] == sys.argv[2])
