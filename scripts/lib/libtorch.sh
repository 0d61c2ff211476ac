# shellcheck shell=bash disable=SC2154  # $root and $deps are common.sh's
# LibTorch from the PyPI wheel, laid down as $deps/libtorch/{torch,nvidia}: libtorch_cpu.so looks for its
# runtime libraries in ../../nvidia/cu13/lib. Only what a C++ build reads is unpacked.
libtorch_version=2.11.0
libtorch_layout=1
# libtorch_cpu.so is linked against these two, with or without a GPU.
cpu_wheels=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# What libtorch_cuda.so loads, and the library that shows that the system's toolkit has it already.
cuda_wheels=(
  nvidia-cublas==13.1.0.3:libcublas.so.13 nvidia-cufft==12.0.0.61:libcufft.so.12
  nvidia-cufile==1.15.1.6:libcufile.so.0 nvidia-curand==10.4.0.35:libcurand.so.10
  nvidia-cusolver==12.0.4.66:libcusolver.so.12 nvidia-cusparse==12.6.3.3:libcusparse.so.12
  nvidia-nvjitlink==13.0.88:libnvJitLink.so.13 nvidia-cuda-nvrtc==13.0.88:libnvrtc.so.13
  nvidia-cudnn-cu13==9.19.0.56:libcudnn.so.9 nvidia-cusparselt-cu13==0.8.0:libcusparseLt.so.0
  nvidia-nccl-cu13==2.28.9:libnccl.so.2 nvidia-nvshmem-cu13==3.4.5:libnvshmem_host.so.3
)

# The folder of a LibTorch that the user points to, if any.
users_libtorch() {
  local prefix
  if [ -n "${Torch_DIR:-}" ]; then echo "$Torch_DIR"; return 0; fi
  for prefix in ${CMAKE_PREFIX_PATH:+${CMAKE_PREFIX_PATH//[:;]/ }}; do
    if [ -e "$prefix/lib/libtorch_cpu.so" ]; then echo "$prefix"; return 0; fi
  done
  return 1
}

libtorch_stamp() { echo "libtorch $libtorch_version layout $libtorch_layout $1"; }

wanted_flavour() {
  case ${1:-auto} in
    auto) if [ "$(gpu_count)" -gt 0 ]; then echo cuda; else echo cpu; fi ;;
    *) echo "$1" ;;
  esac
}

# A CUDA LibTorch serves a machine without a GPU as well, so it is never replaced by a smaller one.
is_libtorch_there() {
  local stamp=$deps/libtorch/.troupe-stamp have
  # A folder that somebody linked in by hand is theirs to keep.
  if [ -L "$deps/libtorch" ] && [ -e "$deps/libtorch/torch/lib/libtorch_cpu.so" ]; then return 0; fi
  [ -e "$stamp" ] || return 1
  have=$(<"$stamp")
  [ "$have" = "$(libtorch_stamp "$1")" ] || [ "$have" = "$(libtorch_stamp cuda)" ]
}

needs_libtorch() { ! users_libtorch >/dev/null && ! is_libtorch_there "$(wanted_flavour "${flavour:-auto}")"; }

# find_system_library NAME: where the loader or the CUDA toolkit has it.
find_system_library() {
  local folder path
  for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda/lib64 /usr/lib/x86_64-linux-gnu \
    /usr/lib/aarch64-linux-gnu; do
    if [ -e "$folder/$1" ]; then echo "$folder/$1"; return 0; fi
  done
  path=$(ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name { print $NF; exit }') || true
  [ -n "$path" ] && echo "$path"
}

# downloaded_mb FOLDER: pip keeps some wheels twice; each counts once.
downloaded_mb() {
  find "$1" -type f -name '*.whl' -printf '%f %s\n' 2>/dev/null |
    awk '$2 > size[$1] { size[$1] = $2 } END { for (name in size) sum += size[name]; printf "%d", sum / 1e6 }'
}

# Prints how far a download has come, for logs; on a terminal pip draws its own bar.
watch_download() {
  local nap=
  trap 'kill $nap 2>/dev/null; exit 0' TERM
  while true; do
    sleep 15 >/dev/null 9>&- & nap=$!
    wait "$nap"
    kill -0 $$ 2>/dev/null || exit 0
    say "  $(downloaded_mb "$1") MB so far"
  done
}

download_wheels() {
  local folder=$1 watcher='' status=0
  shift
  local -a bar=(--progress-bar off -q)
  mkdir -p "$folder/tmp"
  if [ -t 1 ]; then bar=(--progress-bar on); else watch_download "$folder/tmp" & watcher=$!; fi
  # The wheels are only unpacked, so any interpreter may fetch those of Python 3.11.
  TMPDIR=$folder/tmp python3 -m pip download --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --dest "$folder" "${bar[@]}" "$@" || status=$?
  [ -z "$watcher" ] || { kill "$watcher" && wait "$watcher"; } 2>/dev/null || true
  return "$status"
}

# unresolved FILE: the first thing that FILE asks of other libraries and does not get.
unresolved() { ldd -r "$1" 2>&1 | grep -E -m 1 'not found|undefined symbol'; }

# lay_down KIND FOLDER WHEEL...: fetches and unpacks the wheels into FOLDER/tree.
lay_down() {
  local kind=$1 new=$2
  shift 2
  mkdir -p "$new/wheels" "$new/tree"
  download_wheels "$new/wheels" "$@" ||
    die "LibTorch could not be downloaded from PyPI (no network?); Torch_DIR can point to one of yours instead"
  say "unpacking"
  python3 "$root/scripts/lib/unpack_wheels.py" "$kind" "$new/tree" "$new"/wheels/*.whl ||
    die "the downloaded LibTorch could not be unpacked"
}

# lay_down_cuda_libraries NEW: links those of the system's toolkit and downloads the others; or all of them,
# where the system's are there but too old.
lay_down_cuda_libraries() {
  local new=$1 wheel path
  local -a absent=() present=() linked=()
  for wheel in "${cuda_wheels[@]}"; do
    if path=$(find_system_library "${wheel#*:}"); then
      present+=("${wheel%%:*}")
      linked+=("$path")
    else
      absent+=("${wheel%%:*}")
    fi
  done
  if [ ${#absent[@]} -gt 0 ]; then
    say "downloading ${#absent[@]} CUDA libraries that this system lacks"
    lay_down cuda "$new" "${absent[@]}"
  fi
  for path in "${linked[@]}"; do link_toolkit_library "$path" "$new/tree/nvidia/cu13/lib"; done
  if [ ${#present[@]} -gt 0 ] && path=$(unresolved "$new/tree/torch/lib/libtorch_cuda.so"); then
    say "the system's CUDA libraries do not serve (${path#"${path%%[![:space:]]*}"}); downloading ${#present[@]} more"
    find "$new/tree/nvidia/cu13/lib" -type l -delete
    lay_down cuda "$new" "${present[@]}"
  fi
}

install_libtorch() {
  local kind theirs free needed=2500 size='about 540 MB' problem name
  kind=$(wanted_flavour "$1")
  if theirs=$(users_libtorch); then
    say "LibTorch: using yours in $theirs"
    return 0
  fi
  if is_libtorch_there "$kind"; then
    say "LibTorch $libtorch_version is in $deps/libtorch"
    return 0
  fi
  if [ "$kind" = cuda ]; then
    needed=9000
    size='about 540 MB, and up to 2.5 GB of CUDA libraries'
  fi
  free=$(df -Pm "$deps" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$needed" ] || die "LibTorch needs $needed MB of disk while it is unpacked; $deps has $free MB"

  # Whatever an interrupted run left is rubbish: only the rename at the end makes a LibTorch.
  rm -rf "$deps"/libtorch.new.*
  local new
  new=$(mktemp -d "$deps/libtorch.new.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$new'" EXIT
  say "downloading LibTorch $libtorch_version for $kind ($size) into $deps"
  lay_down "$kind" "$new" "${cpu_wheels[@]}"
  [ "$kind" = cpu ] || lay_down_cuda_libraries "$new"
  local -a libraries=(c10 torch_cpu)
  [ "$kind" = cpu ] || libraries+=(torch_cuda)
  for name in "${libraries[@]}"; do
    if problem=$(unresolved "$new/tree/torch/lib/lib$name.so"); then
      die "LibTorch $libtorch_version cannot run here: lib$name.so: ${problem#"${problem%%[![:space:]]*}"}"
    fi
  done
  libtorch_stamp "$kind" >"$new/tree/.troupe-stamp"
  rm -rf "$deps/libtorch"
  mv "$new/tree" "$deps/libtorch"
  rm -rf "$new"
  trap - EXIT
  say "LibTorch $libtorch_version ($kind) is in $deps/libtorch, $(du -sm "$deps/libtorch" | cut -f1) MB"
}

# link_toolkit_library FILE FOLDER: links FILE and its parts (cuDNN and cuBLAS load theirs by name) into FOLDER.
link_toolkit_library() {
  local stem part
  stem=${1%.so*}
  for part in "$stem".so.* "$stem"_*.so.* "$stem"Lt.so.* "$stem"-builtins.so.*; do
    [ ! -e "$part" ] || ln -sf "$part" "$2/"
  done
}
