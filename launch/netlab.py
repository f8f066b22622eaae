"""``python launch/netlab.py --help``: see :mod:`lab.netlab`."""

import sys

import find_environment

sys.path.append(str(find_environment.ROOT))  # for lab/, which is not installed

from lab.netlab import main

sys.exit(main(sys.argv[1:]))
