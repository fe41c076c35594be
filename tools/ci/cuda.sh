#!/usr/bin/env bash
# Compiles the CUDA backend where nvcc is installed, and runs what of its tests needs no GPU; the others skip themselves.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/cuda/bin
if ! command -v nvcc >/dev/null; then
  echo "cuda: nvcc is not installed; not run here"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
cmake --preset cuda >/dev/null
cmake --build build/cuda --target cuda_tests
tools/ci/run_tests.sh build/cuda -L cuda
