#!/usr/bin/env bash
# Sets up everything, the engines included, and runs all checks and tests on the installed wheel.
#
#   scripts/test.sh            everything
#   scripts/test.sh ARGS...    pytest gets ARGS, for example: scripts/test.sh tests/graph -x
#
# In CI (CI=true), which ends after 90 minutes, tests that have not begun after 70 are skipped, and
# those that run alone after 78; pytest says how many. Otherwise it takes the time that it takes.
# What fails is run once more, alone. If it passes then, that is no failure, but worth a look: both
# results are in the output.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi

SECONDS=0
step() { echo "== $* ($SECONDS s)"; }

step environment
make_environment cpu,horovod,byteps,mpi,zoo,dev
step emulated network and Slurm
make_network_tools
make_slurm
step "engines, and beside them lint and types" # a build keeps one of two cores busy
cd "$ROOT"
"$ROOT/scripts/install_engines.sh" horovod byteps mpi &
engines=$!
trap 'kill $engines 2>/dev/null' EXIT
"$VENV/bin/ruff" check .
"$VENV/bin/ruff" format --check .
"$VENV/bin/mypy" ooodist tests/public_types.py
wait $engines

# What is tested is the wheel, not the checkout: the tests run in a copy that has no ooodist/.
step wheel
copy=$(mktemp -d)
restore() {
  cd "$ROOT"
  rm -rf "$copy"
  "$VENV/bin/python" -m pip install --quiet --no-deps --no-build-isolation -e "$ROOT"
}
trap restore EXIT
rm -rf "$ROOT/build" # setuptools would put what lies there into the wheel
"$VENV/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$copy/wheel" "$ROOT"
"$VENV/bin/python" -m pip install --quiet --no-deps --force-reinstall "$copy"/wheel/*.whl
git ls-files -z --cached --others --exclude-standard ':!ooodist' | xargs -0 cp --parents -t "$copy"

step tests
cd "$copy"
# A job of several processes may be too slow for a limit of its test where others run beside it. So
# what fails is run once more, with nothing beside it; the first that fails again is the end.
run_tests() {
  if ! "$VENV/bin/python" -m pytest "$@"; then
    step "once more, alone: what has failed"
    env -u OOODIST_TESTS_UNTIL "$VENV/bin/python" -m pytest --last-failed \
      --last-failed-no-failures none --exitfirst -rA --show-capture no || failed=1
  fi
}
allow_minutes() { # from the beginning of this script
  if [ "${CI:-}" = true ]; then
    export OOODIST_TESTS_UNTIL=$(($(date +%s) - SECONDS + 60 * $1))
  fi
}
failed=0
if [ $# -gt 0 ]; then
  run_tests "$@"
else
  # Two at a time on two cores: jobs of several processes wait for each other half of the time.
  allow_minutes 70
  run_tests --numprocesses 2 --dist worksteal -m "not alone"
  step tests that run alone
  allow_minutes 78
  run_tests -m alone
fi
step newest TensorFlow and Keras # only warns
"$ROOT/scripts/newest.sh"
step done
exit $failed
