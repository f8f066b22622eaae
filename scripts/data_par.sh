#!/usr/bin/env bash
# Reruns all measurements of expr/data_par: stock engines against plans, on an emulated network.
#
#   scripts/data_par.sh             everything, into expr/data_par (some four hours; root only)
#   scripts/data_par.sh ARGS...     run.py gets ARGS: scripts/data_par.sh --models bert --repeats 3
#   scripts/data_par.sh MODEL       one model: resnet50, vgg16, bert or mobilenet_v3
set -euo pipefail
source "$(dirname "$0")/environment.sh"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi
if [ "$#" = 1 ]; then
  set -- --models "$1"
fi

make_environment cpu,horovod,byteps,dev
make_network_tools
"$ROOT/scripts/install_engines.sh" horovod byteps
"$VENV/bin/python" "$ROOT/expr/data_par/run.py" "$@"
"$VENV/bin/python" "$ROOT/expr/data_par/report.py"
