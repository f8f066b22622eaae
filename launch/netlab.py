"""``python launch/netlab.py --help``: see :mod:`ooodist.launcher.netlab`."""

import sys

import find_environment  # noqa: F401

from ooodist.launcher.netlab import main

sys.exit(main(sys.argv[1:]))
