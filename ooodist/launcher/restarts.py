"""Starts a job anew when it has failed, and says why, or why not."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from ooodist.launcher.output import Output
from ooodist.util.program import USER_ERROR_CODE

# A job that fails so often in a row in the same way, each time so soon, will not do better.
QUICK_SECONDS, SAME_FAILURES = 60.0, 3
TRAINER = "ooodist.train"


@dataclass(frozen=True)
class Ended:
    """How a job has ended.

    Attributes:
        code: its exit code.
        failure: which processes have failed, and how; empty if it ended well, or was told to end.
        seconds: how long it ran.
    """

    code: int
    failure: str
    seconds: float


def run(start: Callable[[int], Ended], most: int, output: Output) -> int:
    """Runs a job, and again after each failure; returns the last exit code.

    Exit code 2 is of what a person has to put right, so the job is not started again.

    Args:
        start: runs the job once; called with the number of the restart, 0 at first.
        most: how many restarts there may be.
        output: where restarts are announced.
    """
    quick: list[str] = []
    for number in itertools.count():
        ended = start(number)
        if not ended.failure or most == 0:
            return ended.code
        if ended.code == USER_ERROR_CODE:
            output.say("no restart: the error above is for you to put right")
            return ended.code
        quick = [*quick, ended.failure] if ended.seconds < QUICK_SECONDS else []
        if len(quick) >= SAME_FAILURES and len(set(quick[-SAME_FAILURES:])) == 1:
            output.say(
                f"no restart: {SAME_FAILURES} times in a row, within {QUICK_SECONDS:g} s of the "
                f"start: {ended.failure}"
            )
            return ended.code
        if number == most:
            output.say(f"no restart: there were {most} (--restarts)")
            return ended.code
        output.begin_again()
        output.say(f"restart {number + 1} of {most}, as {ended.failure}")
    raise AssertionError("unreachable")


def resuming(command: list[str], workers: int | None) -> list[str]:
    """The command that goes on from the newest checkpoint.

    Other programs than the trainer are started as they are; OOODIST_RESTART tells them.

    Args:
        workers: their number, if it differs from that of the first start.
    """
    if TRAINER not in command:
        return command
    settings = ["checkpoint.restart=true"]
    if workers is not None:
        settings.append(f"workers={workers}")
    return [*command, *(word for setting in settings for word in ("--set", setting))]
