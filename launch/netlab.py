"""``python launch/netlab.py --help``: see :mod:`expr.lab.netlab`."""

import sys

import find_environment

sys.path.append(str(find_environment.ROOT))  # for expr/lab, which is not installed

from expr.lab.netlab import main

sys.exit(main(sys.argv[1:]))
