#!/usr/bin/env bash
# Sets up everything, the engines included, and runs all checks and tests on the installed wheel.
#
#   scripts/test.sh              everything
#   scripts/test.sh --thorough   the same, with 1,000 examples of each property instead of 30
#   scripts/test.sh ARGS...      pytest gets ARGS, for example: scripts/test.sh tests/graph -x
#
# A test that fails is a failure. Only one that is marked `timing`, as it depends on the speed of a
# machine that may be busy, is run once more, alone; those that pass then are listed at the end.
set -euo pipefail
source "$(dirname "$0")/environment.sh"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  show_help
  exit
fi

SECONDS=0
took=""
step() { # says what begins, and notes how long took what ends with it
  [ -z "${current:-}" ] || took+="$current: $((SECONDS - begun)) s"$'\n'
  current=$* begun=$SECONDS
  echo "== $* ($SECONDS s)"
}

step environment
make_environment cpu,horovod,byteps,mpi,zoo,docs,dev
make_keras_hub
step emulated network and Slurm
make_network_tools
make_slurm
step "engines, and beside them lint, types and documentation" # a build keeps one of two cores busy
cd "$ROOT"
"$ROOT/scripts/install_engines.sh" horovod byteps mpi &
engines=$!
"$ROOT/scripts/docs.sh" &
docs=$!
trap 'kill $engines $docs 2>/dev/null' EXIT
"$VENV/bin/ruff" check .
"$VENV/bin/ruff" format --check .
"$VENV/bin/mypy" ooodist expr/lab tests/public_types.py
wait $docs
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
run_pytest() { "$VENV/bin/python" -m pytest "$@"; }
run_tests() {
  local failed=(--last-failed --last-failed-no-failures none)
  if run_pytest "$@"; then return; fi
  step "failed tests that are marked timing, once more, alone"
  if ! run_pytest "${failed[@]}" --collect-only --quiet -m timing >/dev/null ||
    run_pytest "${failed[@]}" --collect-only --quiet -m "not timing" >/dev/null ||
    ! run_pytest "${failed[@]}" -m timing -rA --show-capture no; then
    result=1
  fi
}
result=0
if [ $# -gt 0 ] && [ "$*" != --thorough ]; then
  run_tests "$@"
else
  # Two at a time on two cores: jobs of several processes wait for each other half of the time.
  run_tests --numprocesses 2 --dist worksteal -m "not alone" "$@"
  step tests that run alone
  mapfile -t alone < <(grep -rl --include='test_*.py' 'mark\.alone' tests)
  run_tests -m alone "${alone[@]}" "$@"
fi
step newest TensorFlow and Keras # only warns
"$ROOT/scripts/newest.sh"
step done
printf %s "$took"
exit $result
