# shellcheck shell=bash disable=SC2154  # common.sh's and gpu-check's
# PyTorch as gpu-check finds it, and a build from source beside it, without the control plane (preset gpu).
build=$root/build-gpu

# find_torch: the folder of the Python's torch, else that of scripts/setup, in $torch.
find_torch() {
  torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null) || torch=
  [ -n "$torch" ] || torch=$deps/libtorch/torch
  [ -e "$torch/lib/libtorch_cpu.so" ] || cannot "$python has no torch"
  [ -n "$rehearse" ] || [ "$action" = --build-only ] || [ -e "$torch/lib/libtorch_cuda.so" ] ||
    cannot "$torch has no CUDA half (libtorch_cuda.so)"
}

# torch_libraries: its folders of libraries, with colons between.
torch_libraries() {
  local folder all=$torch/lib
  for folder in "$torch"/../nvidia/*/lib; do
    [ ! -d "$folder" ] || all=$all:$(realpath "$folder")
  done
  echo "$all"
}

# build_here all|most: builds in build-gpu/; `most`: what was built is run even if the rest does not build. In a call it leaves
# two minutes for the tests.
build_here() {
  local -a within=()
  [ -z "$call" ] || within=(timeout -k 5 $((seconds - (SECONDS - started) > 150 ? seconds - (SECONDS - started) - 120 : 30)))
  local -a options=(-DTROUPE_LIBTORCH="$torch") keep_going=(-k)
  local folder arch
  command -v cmake >/dev/null || cannot "cmake is missing"
  mkdir -p "$build"
  if [ -e "$carry/headers.tar.xz" ]; then
    mkdir -p "$build/carried"
    tar -xJf "$carry/headers.tar.xz" -C "$build/carried"
    options+=(-DTROUPE_CARRIED="$build/carried")
  fi
  # NCCL comes as a wheel beside torch, in either of its layouts.
  for folder in "$torch"/../nvidia/nccl "$torch"/../nvidia/cu13; do
    if [ -e "$folder/lib/libnccl.so.2" ] && [ -e "$folder/include/nccl.h" ]; then
      options+=(-DNCCL_LIBRARY="$(realpath "$folder")/lib/libnccl.so.2" -DNCCL_INCLUDE_DIR="$(realpath "$folder")/include")
      break
    fi
  done
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n1 | tr -d '. ') || arch=
  options+=(-DTROUPE_CUDA_ARCHITECTURES="${arch:-${TROUPE_CUDA_ARCHITECTURES:-90}}")
  command -v nvcc >/dev/null || [ ! -x /usr/local/cuda/bin/nvcc ] || export PATH=/usr/local/cuda/bin:$PATH
  command -v nvcc >/dev/null || cannot "nvcc is missing"
  command -v ninja >/dev/null && options+=(-G Ninja) keep_going=(-k 0)
  say "building from source; LibTorch in $torch, $(nvcc --version | grep -o 'release [0-9.]*')"
  (cd "$root" && "${within[@]}" cmake --preset gpu "${options[@]}") >"$build/configure.log" 2>&1 ||
    { tail -n 25 "$build/configure.log" >&2; cannot "configuring failed; the log is $build/configure.log"; }
  if ! "${within[@]}" cmake --build "$build" -j "${TROUPE_JOBS:-$(nproc)}" -- "${keep_going[@]}" >"$build/build.log" 2>&1; then
    grep -E 'error|undefined reference|No such file|FAILED' "$build/build.log" | head -n 40 >&2
    warn "building failed; the log is $build/build.log"
    [ "$1" = most ] && compgen -G "$build/bin/gpu_*_test" >/dev/null || exit 2
  fi
  say "built in $((SECONDS - started)) s"
}
