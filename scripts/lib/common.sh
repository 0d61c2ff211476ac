# shellcheck shell=bash
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

# Prints the comment block at the top of the script, without its shebang.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }
# help_if_asked "$@": one of the arguments asks for it.
help_if_asked() {
  local word
  for word in "$@"; do
    case $word in
      -h | --help) usage; exit 0 ;;
      --) return 0 ;;
    esac
  done
}

# What is wrong with the command line ends the script before it has done anything.
wrong() { warn "$* (see scripts/$script_name --help)"; exit 2; }
# unknown WORD: the command line has no place for it.
unknown() {
  case $1 in
    -*) wrong "unknown option $1" ;;
    *) wrong "unexpected argument \"$1\"" ;;
  esac
}
# needs_value "$@": the first is an option, its value comes next; -5 is one, -x is not.
needs_value() { [[ $# -ge 2 && ! $2 =~ ^-[^0-9] ]] || wrong "$1 needs a value"; }
# check_whole WHAT VALUE LEAST MOST
check_whole() {
  if ! [[ $2 =~ ^(0|[1-9][0-9]{0,17})$ ]] || (($2 < $3 || $2 > $4)); then
    wrong "$1: \"$2\" is not a whole number from $3 to $4"
  fi
}
# check_above_zero WHAT VALUE MOST: a number with or without a fraction.
check_above_zero() {
  if ! [[ $2 =~ ^[0-9]{1,9}(\.[0-9]{1,9})?$ ]] || ! awk -v n="$2" -v most="$3" 'BEGIN { exit !(n > 0 && n <= most) }'; then
    wrong "$1: \"$2\" is not a number above 0, up to $3"
  fi
}
# check_one_of WHAT VALUE WORD...
check_one_of() {
  local word
  for word in "${@:3}"; do [ "$word" != "$2" ] || return 0; done
  wrong "$1: \"$2\" is not known; known are ${*:3}"
}

# check_build_folder FOLDER
check_build_folder() {
  [ -f "$1/build.ninja" ] || die "$1 is no build folder; run scripts/setup and cmake --preset release first"
}

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
  # TROUPE_UNITY=OFF in the environment: file by file, for whoever changes much.
  (cd "$root" && logged "$deps/configure-$preset.log" cmake --preset "$preset" ${TROUPE_UNITY:+"-DTROUPE_UNITY=$TROUPE_UNITY"}) ||
    die "configuring failed; the whole log is $deps/configure-$preset.log"
  say "building on $(nproc) cores"
  (cd "$root" && NINJA_STATUS='[%f/%t, %es] ' cmake --build --preset "$preset" -j "$(nproc)" "${targets[@]}")
}
