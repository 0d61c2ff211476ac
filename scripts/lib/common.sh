# Sourced by every script here: where the project is, and how to speak.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
deps=$root/.deps
if [ -n "${TROUPE_DEPS:-}" ]; then
  deps=$(realpath -m "$TROUPE_DEPS")
  export TROUPE_DEPS=$deps
fi
script_name=$(basename "$0")

say() { printf '%s: %s\n' "$script_name" "$*"; }
warn() { printf '%s: %s\n' "$script_name" "$*" >&2; }
die() { warn "$*"; exit 1; }

# usage TEXT_FILE: prints the comment block at the top of a script, without its shebang.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$1"; }

gpu_count() {
  if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true
  else
    compgen -G '/dev/nvidia[0-9]*' | wc -l || true
  fi
}

# Whether clang is here with libFuzzer and the sanitizers.
has_libfuzzer() {
  command -v clang++ >/dev/null || return 1
  printf 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null >/dev/null 2>&1
}

# logged LOG COMMAND...: runs COMMAND with its output in LOG; shows the end of LOG if it fails.
logged() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 && return 0
  local status=$?
  tail -n 12 "$log" >&2
  return "$status"
}

configure_and_build() {
  local preset=$1
  shift
  local -a targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  say "configuring (preset $preset)"
  (cd "$root" && logged "$deps/configure-$preset.log" cmake --preset "$preset") ||
    die "configuring failed; the whole log is $deps/configure-$preset.log"
  say "building on $(nproc) cores"
  (cd "$root" && NINJA_STATUS='[%f/%t, %es] ' cmake --build --preset "$preset" -j "$(nproc)" "${targets[@]}")
}
