"""``python -m ooodist.launch``: starts the processes of a job on this machine; see ``--help``."""

import sys

from ooodist.launcher.local import main


def command() -> int:
    """``ooodist-launch``."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(command())
