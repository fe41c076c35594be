#!/usr/bin/env bash
# Installs what is missing of the distribution's packages, and nothing else. Debian 12 and later, Ubuntu 24.04 and later.
#   tools/install_dependencies.sh [build] [test] [fuzz] [arm64] [venv]       default: build
# build: compiler, build tools, libraries. test: what the tests need beside that. fuzz: clang with libFuzzer.
# arm64: cross compiler and qemu. venv: the Python packages of tools/requirements.txt in .venv.
# Takes a fraction of a second when everything is there. Packages need root or sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(g++ make cmake ninja-build ccache pkg-config libfmt-dev libspdlog-dev libhwy-dev libcli11-dev
  libutf8proc-dev libpcre2-dev libxxhash-dev libzstd-dev libgtest-dev libgmock-dev libbenchmark-dev)
test_packages=(python3 python3-venv curl)
fuzz_packages=(clang llvm)
arm64_packages=(g++-aarch64-linux-gnu qemu-user)

fail() { echo "install_dependencies: $*" >&2; exit 1; }

is_installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else fail "missing packages, and neither root nor sudo to install them: ${missing[*]}"
  fi
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 \
    -o DPkg::Lock::Timeout=300 "$@"
}

# Boost 1.81 or newer: the plain package of Ubuntu, a versioned one beside the older default of Debian 12.
has_boost() {
  local version
  version=$(sed -n 's/^#define BOOST_VERSION \([0-9]*\).*/\1/p' /usr/include/boost/version.hpp 2>/dev/null || true)
  [ "${version:-0}" -ge 108100 ]
}

boost_package() {
  apt-cache search --names-only '^libboost1\.[0-9]+-dev$' | awk '{print $1}' | sort -V | tail -n 1
}

install_packages() {
  command -v dpkg-query >/dev/null || fail "this system has no dpkg; install the packages that this script lists by hand"
  local needs_boost=$1 package
  shift
  missing=()
  for package in "$@"; do is_installed "$package" || missing+=("$package"); done
  if [ "$needs_boost" = yes ] && has_boost; then needs_boost=no; fi
  if [ ${#missing[@]} = 0 ] && [ "$needs_boost" = no ]; then return; fi
  echo "installing: ${missing[*]} $([ "$needs_boost" = yes ] && echo 'boost 1.81 or newer')"
  apt update
  if [ "$needs_boost" = yes ]; then
    package=$(boost_package)
    [ -n "$package" ] || fail "no package libboost1.81-dev or newer; Debian 12 or Ubuntu 24.04 have one"
    missing+=("$package")
  fi
  apt install -y --no-install-recommends ca-certificates "${missing[@]}"
}

# The stamp holds the requirements it was made from, so a changed list makes the environment anew.
install_venv() {
  if cmp -s tools/requirements.txt .venv/requirements.installed; then return; fi
  echo "installing the Python packages of tools/requirements.txt in .venv"
  python3 -m venv --clear .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --requirement tools/requirements.txt
  cp tools/requirements.txt .venv/requirements.installed
}

packages=()
needs_boost=no
needs_venv=no
for group in "${@:-build}"; do
  case $group in
    build) packages+=("${build_packages[@]}"); needs_boost=yes ;;
    test) packages+=("${test_packages[@]}") ;;
    fuzz) packages+=("${fuzz_packages[@]}") ;;
    arm64) packages+=("${arm64_packages[@]}") ;;
    venv) packages+=(python3 python3-venv); needs_venv=yes ;;
    *) fail "unknown group '$group'; known: build test fuzz arm64 venv" ;;
  esac
done
install_packages "$needs_boost" "${packages[@]}"
if [ $needs_venv = yes ]; then install_venv; fi
