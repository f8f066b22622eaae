#!/usr/bin/env bash
# From a bare machine to a trained model: two workers on this machine train ResNet-20 on real
# handwritten digits, weight gradients out of order, over TensorFlow's own collectives.
#
# Needs Python 3.11, 3.12 or 3.13 and no compiler. Arguments go to the training program, for example:
#   scripts/quickstart.sh --set epochs=3 --set batch=16
set -euo pipefail
source "$(dirname "$0")/environment.sh"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi

SECONDS=0
# pip would compile all modules to bytecode, which takes half of its time; Python compiles those that it
# imports, once, unless it may not write them.
[ -n "${PYTHONDONTWRITEBYTECODE:-}" ] || INSTALL_OPTIONS=--no-compile
make_environment cpu
echo "set-up: $SECONDS s"
cd "$ROOT"
output=runs/quickstart/$(date +%Y%m%d-%H%M%S)
"$VENV/bin/python" launch/local.py -np 2 --engine collective --log-dir "$output/logs" -- \
  "$VENV/bin/python" -m ooodist.train --config expr/quickstart/config.yaml --output "$output" "$@"
echo "in all: $SECONDS s"
echo "next: run '. ${VENV#"$PWD"/}/bin/activate'; then the commands of README.md and docs/ work as they stand;"
echo "those with horovodrun, bpslaunch or mpirun after 'ooodist-engines horovod byteps mpi'"
