#!/usr/bin/env bash
# ooodist-engines for the project's environment, which it sets up if it is not there: builds and
# installs Horovod, BytePS and mpi4py.
#
#   scripts/install_engines.sh [--gpu|--cpu] [horovod] [byteps] [mpi]
#
#   OOODIST_VENV          the Python environment to install into (.venv of this repository)
#   OOODIST_WHEEL_CACHE   where to keep what is built (~/.cache/ooodist/wheels)
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "$0")/environment.sh"

case " $* " in
  *" --help "* | *" -h "*)
    show_help
    exit
    ;;
  *" --gpu "*) extra=gpu ;;
  *) extra=cpu ;;
esac
[ -x "$VENV/bin/python" ] || make_environment "$extra"
exec "$VENV/bin/python" -m ooodist.install_engines "$@"
