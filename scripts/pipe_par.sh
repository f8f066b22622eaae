#!/usr/bin/env bash
# Reruns all measurements of expr/pipe_par: schedules of pipelines on real stages, found while
# training, on emulated devices, and what they keep in memory.
#
#   scripts/pipe_par.sh             everything, into expr/pipe_par (an hour and a half)
#   scripts/pipe_par.sh PART        one part: real, live, emulated, weak_scaling, memory, cut, or
#                                   hybrid, which needs root
set -euo pipefail
source "$(dirname "$0")/environment.sh"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi

make_environment cpu,mpi,dev
"$ROOT/scripts/install_engines.sh" mpi
for part in ${1:-real live emulated weak_scaling memory cut}; do
  "$VENV/bin/python" "$ROOT/expr/pipe_par/$part.py"
done
