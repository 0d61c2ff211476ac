# shellcheck shell=bash disable=SC2154  # common.sh's and gpu-check's
# What goes along to a machine with a GPU: benchmarks/gpu/pack.py packs it, this gathers what it packs.
diffusers_version=$(sed -n 's/^diffusers==//p' "$root/tests/reference/requirements.txt")

# headers_into FOLDER: Boost.Asio, nlohmann-json, doctest and libsodium with all that they include, as the compiler here sees
# them.
headers_into() {
  local into=$1 list header from boost folder sodium
  list=$(mktemp)
  # shellcheck disable=SC2064
  trap "rm -f '$list'" RETURN
  (
    cd "$root" || exit
    grep -rhoE '^#include <(boost|nlohmann|doctest|fmt)/[^>]+>' transport/tensor base/format.h models/spec models/*.cpp \
      models/dit models/lora models/vae models/samplers tests/support tests/gpu || true
  ) | sort -u >"$list"
  [ -s "$list" ] || die "found no header to pack"
  # Whole folders where another compiler may take other branches; exact files for the rest of Boost.
  from=$(echo '#include <boost/asio.hpp>' | cat "$list" - |
    g++ -std=c++20 -DBOOST_ERROR_CODE_HEADER_ONLY -x c++ -M - | tr -s ' \134' '[\n*]' |
    grep -E '/(boost|nlohmann|doctest|fmt)/') || die "the compiler does not find these headers: $(tr '\n' ' ' <"$list")"
  for header in $from; do
    install -D -m 644 "$header" "$into/include/${header#*/include/}"
  done
  boost=$(grep -m1 '/boost/' <<<"$from")
  boost=${boost%%/boost/*}/boost
  for folder in asio config predef system core throw_exception.hpp; do
    [ ! -e "$boost/$folder" ] || cp -rL "$boost/$folder" "$into/include/boost/"
  done
  sodium=$(g++ -print-file-name=libsodium.so)
  [ -e "$sodium" ] || die "libsodium is missing"
  install -D -m 644 "$(readlink -f "$sodium")" "$into/lib/libsodium.so.23"
  cp -rL /usr/include/sodium.h /usr/include/sodium "$into/include/"
}

# kernels_alone: builds the library of kernels for one architecture, beside build/, which has it for all.
kernels_alone() {
  local log=$root/build-gpu/pack.log
  mkdir -p "$root/build-gpu"
  (cd "$root" && cmake --preset gpu -G Ninja -DTROUPE_CUDA_ARCHITECTURES="${TROUPE_CUDA_ARCHITECTURES:-90}" &&
    cmake --build build-gpu --target troupe_kernels_cuda) >"$log" 2>&1 ||
    { tail -n 5 "$log" >&2; die "building the kernels failed; the log is $log"; }
}

# pack AS_BUILT
pack() {
  local from=${TROUPE_BUILD:-$root/build} scratch
  local -a options=(--build "$from" --into "$carry")
  [ -z "${TROUPE_CARRY_MOST:-}" ] || options+=(--most "$TROUPE_CARRY_MOST")
  check_build_folder "$from"
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$scratch'" EXIT
  if [ -n "$1" ]; then
    options+=(--fast)
  else
    say "building what is not up to date"
    ninja -C "$from" troupe troupe-actor gpu_kernels_test gpu_graph_test gpu_models_test gpu_nccl_test gpu_nccl_peer gpu_bench \
      troupe_device_probe >"$scratch/build.log" 2>&1 || { tail -n 5 "$scratch/build.log" >&2; die "building failed"; }
    kernels_alone
    options+=(--kernels "$root/build-gpu/lib/libtroupe_kernels_cuda.so")
    python3 -m pip download --disable-pip-version-check -q --no-deps --only-binary=:all: -d "$scratch" \
      "diffusers==$diffusers_version" || die "diffusers could not be downloaded (no network?)"
    options+=(--diffusers "$(compgen -G "$scratch/diffusers-*.whl")")
  fi
  headers_into "$scratch/headers"
  python3 "$gpu/pack.py" "${options[@]}" --headers "$scratch/headers" || die "nothing is ready to travel"
}
