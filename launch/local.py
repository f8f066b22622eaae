"""``python launch/local.py --help``: see :mod:`ooodist.launcher.local`."""

import sys

import find_environment  # noqa: F401

from ooodist.launcher.local import main

sys.exit(main(sys.argv[1:]))
