#!/usr/bin/env bash
# Cross-compiles for arm64 and runs the tests of the arithmetic under qemu. The libraries come from the distribution's
# own arm64 packages, unpacked into build/arm64-sysroot; nothing on the system changes.
#   tools/ci/arm64.sh [ctest options]        default: the tests labelled `arithmetic`: base, ops, models by their hashes
set -euo pipefail
cd "$(dirname "$0")/../.."

# Ubuntu keeps arm64 on another mirror than amd64, which apt would have to be told of.
if ! grep -qx 'ID=debian' /etc/os-release; then
  echo "arm64: only set up for Debian; not run here"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
tools/install_dependencies.sh build arm64

sysroot=$PWD/build/arm64-sysroot
if [ ! -f "$sysroot/complete" ]; then
  apt_folder=$PWD/build/arm64-apt
  rm -rf "$sysroot" "$apt_folder"
  mkdir -p "$sysroot" "$apt_folder/state/lists/partial" "$apt_folder/cache/archives/partial"
  : >"$apt_folder/status" # nothing installed: apt resolves every dependency, libc included
  apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State=$apt_folder/state"
    -o "Dir::State::status=$apt_folder/status" -o "Dir::Cache=$apt_folder/cache" -o Debug::NoLocking=1
    -o APT::Sandbox::User=root -o Acquire::Retries=3)
  "${apt[@]}" update
  boost=$(apt-cache search --names-only '^libboost1\.[0-9]+-dev$' | awk '{print $1}' | sort -V | tail -n 1)
  libstdcxx=libstdc++-$(aarch64-linux-gnu-g++ -dumpversion | cut -d. -f1)-dev
  "${apt[@]}" install -y --no-install-recommends --download-only "$boost" "$libstdcxx" libfmt-dev libspdlog-dev \
    libhwy-dev libcli11-dev libutf8proc-dev libpcre2-dev libxxhash-dev libzstd-dev libgtest-dev libgmock-dev
  for package in "$apt_folder"/cache/archives/*.deb; do dpkg -x "$package" "$sysroot"; done
  rm -rf "$apt_folder"
  touch "$sysroot/complete"
fi

cmake --preset arm64 >/dev/null
if [ $# = 0 ]; then
  cmake --build build/arm64 --target arithmetic_tests
  set -- -L arithmetic
else
  cmake --build build/arm64
fi
# Emulation is some ten times slower than the machine, so a test gets more time than its own limit. How often tokens are
# drawn is counted over millions of draws whose bits other tests compare.
export GTEST_FILTER="-SampleDistribution.*"
tools/ci/run_tests.sh build/arm64 --timeout 3600 "$@"
