# Sourced by the scripts beside it: the project's virtual environment.
#
#   make_environment EXTRA...   creates .venv (OOODIST_VENV: elsewhere) with these extras of
#                               pyproject.toml; does nothing if it is there and up to date.
#                               INSTALL_OPTIONS: further options of pip install.
#   make_keras_hub              installs KerasHub, for the tests of its models.
#   make_network_tools          installs what launch/netlab.py and the tests of hosts over ssh need
#                               of the system, if it is root.
#   make_slurm                  installs Slurm, for the tests of launch/slurm, if it is root.
#
# Sets ROOT (the repository) and VENV.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${OOODIST_VENV:-$ROOT/.venv}

fail() {
  echo "$(basename "$0"): error: $*" >&2
  exit 1
}

# A script's --help is the comment at its beginning.
show_help() {
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
}

# The distribution's before others: it is built with profiles, and one that pyenv has compiled on this
# machine takes 1.3 times as long to trace a model. One with pip before one that needs a package for it.
find_python() {
  local candidate needed candidates=(/usr/bin/python3.{11,12,13} python3.{11,12,13} python3)
  if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
  for needed in ensurepip sys; do
    for candidate in "${candidates[@]}"; do
      if command -v "$candidate" >/dev/null &&
        "$candidate" -c "import $needed, sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))" \
          2>/dev/null; then
        echo "$candidate"
        return
      fi
    done
  done
  fail "${PYTHON:+PYTHON=$PYTHON: }no Python 3.11, 3.12 or 3.13 found: install it (Debian 12: apt-get" \
    "install python3 python3-venv), or name one: PYTHON=/path/to/python3.11 $0"
}

# As root on Debian; else does nothing.
install_package() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  fi
}

make_environment() {
  local extras stamp python
  extras=$(IFS=,; echo "$*")
  stamp="$VENV/.ooodist-$(cat "$ROOT/pyproject.toml" - <<<"$extras" | sha256sum | cut -c1-16)"
  if [ -e "$stamp" ]; then return; fi
  python=$(find_python) || exit 1
  if [ ! -x "$VENV/bin/python" ]; then
    echo "creating $VENV"
    if ! "$python" -m venv "$VENV" >/dev/null 2>&1; then
      # Debian ships Python without the venv module.
      rm -rf "$VENV"
      install_package python3-venv
      "$python" -m venv "$VENV" || fail "cannot create a virtual environment:" \
        "run 'apt-get install python3-venv' as root, then this again"
    fi
  fi
  echo "installing ooodist and what it needs ($extras) into $VENV"
  # setuptools < 70 for the builds of Horovod and BytePS, which use what later ones removed.
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check ${INSTALL_OPTIONS:-} 'setuptools<70' wheel ||
    fail "pip failed; see above"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check ${INSTALL_OPTIONS:-} -e "$ROOT[$extras]" ||
    fail "pip failed; see above"
  rm -f "$VENV"/.ooodist-*
  touch "$stamp"
}

# What tensorflow-text requires would put another TensorFlow beside tensorflow-cpu.
make_keras_hub() {
  local version
  if "$VENV/bin/python" -m pip show --quiet keras-hub >/dev/null 2>&1; then return; fi
  version=$("$VENV/bin/python" -m pip show tensorflow-cpu | sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/\1/p')
  echo "installing KerasHub"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    keras-hub regex "tensorflow-text==$version.*" || fail "pip failed; see above"
}

make_network_tools() {
  if ! tc -Version >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "installing iproute2"
    install_package iproute2
    tc -Version >/dev/null || fail "the emulated network needs tc: run 'apt-get install iproute2'"
  fi
  if [ ! -x /usr/sbin/sshd ] && [ "$(id -u)" = 0 ]; then
    echo "installing openssh-server"
    install_package openssh-server openssh-client
  fi
}

# Given several names at once, command -v is content with one.
has_slurm() {
  command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged
} >/dev/null

make_slurm() {
  if [ "$(id -u)" = 0 ] && ! has_slurm; then
    echo "installing Slurm"
    install_package slurmctld slurmd slurm-client munge
    has_slurm ||
      fail "the tests of launch/slurm need Slurm: run 'apt-get install slurmctld slurmd munge'"
  fi
}
