# shellcheck shell=bash disable=SC2154  # $root and $deps are common.sh's
# Debian 12 and Ubuntu 24.04 package names, each with what shows that it is already there:
# a command, or a header under one of the include folders. So a hand-installed library counts too.
packages=(
  g++:g++ cmake:cmake ninja-build:ninja ccache:ccache pkg-config:pkg-config git:git
  python3:python3
  libzmq3-dev:zmq.h libsodium-dev:sodium.h cppzmq-dev:zmq.hpp libcereal-dev:cereal/cereal.hpp
  libboost-dev:boost/beast.hpp nlohmann-json3-dev:nlohmann/json.hpp libcli11-dev:CLI/CLI.hpp
  libsentencepiece-dev:sentencepiece_processor.h libpcre2-dev:pcre2.h libutf8proc-dev:utf8proc.h libxxhash-dev:xxhash.h libfmt-dev:fmt/format.h libpng-dev:png.h libjpeg-dev:jpeglib.h libwebp-dev:webp/encode.h libvpx-dev:vpx/vpx_encoder.h libmatroska-dev:matroska/KaxSegment.h libopenh264-dev:wels/codec_api.h libssl-dev:openssl/ssl.h libedit-dev:histedit.h
  libsqlite3-dev:sqlite3.h doctest-dev:doctest/doctest.h librapidcheck-dev:rapidcheck.h
)

# What tests start beside them: HTTP by a client that others wrote, certificates, hosts as network namespaces, an archive.
test_programs=(curl:curl openssl:openssl iproute2:ip xz-utils:xz)

is_header_found() {
  local folder
  for folder in /usr/include /usr/local/include ${CMAKE_PREFIX_PATH:+${CMAKE_PREFIX_PATH//[:;]//include }/include} \
    ${CPATH:+${CPATH//:/ }} ${CONDA_PREFIX:+$CONDA_PREFIX/include}; do
    [ ! -e "$folder/$1" ] || return 0
  done
  return 1
}

missing_packages() {
  local entry probe
  for entry in "${packages[@]}"; do
    probe=${entry#*:}
    case $probe in
      */* | *.h | *.hpp) is_header_found "$probe" || echo "${entry%%:*}" ;;
      *) command -v "$probe" >/dev/null 2>&1 || echo "${entry%%:*}" ;;
    esac
  done
  if needs_libtorch && ! has_pip; then echo python3-pip; fi
}

has_pip() { python3 -m pip --version >/dev/null 2>&1; }

check_cmake_version() {
  command -v cmake >/dev/null 2>&1 || return 0
  local have
  have=$(cmake --version | awk 'NR == 1 { print $3 }')
  [ "$(printf '%s\n3.25\n' "$have" | sort -V | head -n 1)" = 3.25 ] ||
    die "cmake $have is too old: Troupe needs 3.25 or newer (Debian 12 and Ubuntu 24.04 have it)"
}

# apt_install LOG PACKAGES...: installs them, or dies where nobody may; its status is apt-get's.
apt_install() {
  local log=$1
  local -a as_root=()
  shift
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 ||
      die "neither root nor sudo; have these packages installed: $*"
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n)
    "${as_root[@]}" true || die "sudo refused; have these packages installed: $*"
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
  say "installing $# packages: $*"
  logged "$deps/apt-update.log" "${as_root[@]}" update || warn "apt-get update failed; trying with the lists there are"
  logged "$log" "${as_root[@]}" install --no-install-recommends "$@"
}

# install_packages yes|no: installs what is missing through apt-get, or dies naming it.
install_packages() {
  local -a missing
  mapfile -t missing < <(missing_packages)
  if [ ${#missing[@]} -eq 0 ]; then
    check_cmake_version
    return 0
  fi
  [ "$1" = yes ] || die "missing, and not installed because of --no-apt: ${missing[*]}"
  command -v apt-get >/dev/null 2>&1 ||
    die "this is neither Debian nor Ubuntu; install by hand what these packages hold: ${missing[*]}"
  apt_install "$deps/apt-install.log" "${missing[@]}" ||
    die "apt-get could not install: ${missing[*]} (log: $deps/apt-install.log)"
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -eq 0 ] || die "still missing after apt-get: ${missing[*]}"
  check_cmake_version
}

# install_test_packages yes|no: what tests start, and what tests/python and tests/page need. Ubuntu has no Chromium but a snap; where something
# cannot be had, those tests say that they are skipped.
install_test_packages() {
  local -a missing=()
  local entry
  for entry in "${test_programs[@]}"; do
    command -v "${entry#*:}" >/dev/null 2>&1 || missing+=("${entry%%:*}")
  done
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
  if [ ${#missing[@]} -gt 0 ] && { [ "$1" = no ] || ! (apt_install "$deps/apt-tests.log" "${missing[@]}"); }; then
    warn "what needs these packages is not tested: ${missing[*]} not installed"
  fi
  missing=()
  command -v chromium >/dev/null 2>&1 || missing+=(chromium)
  command -v chromedriver >/dev/null 2>&1 || missing+=(chromium-driver)
  /usr/bin/python3 -c 'import selenium' 2>/dev/null || missing+=(python3-selenium)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$1" = yes ] && [ -n "$(apt-cache search --names-only '^chromium-driver$' 2>/dev/null)" ]; then
    (apt_install "$deps/apt-browser.log" "${missing[@]}") && return 0
  fi
  warn "the page is not tested in a browser: ${missing[*]} not installed"
}
