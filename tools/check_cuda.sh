#!/usr/bin/env bash
# Everything that is known of the CUDA backend on the machine it runs on: op tests, the exactness matrix on the device,
# compute-sanitizer on tiny models, and with --speed the table of docs/benchmarks.md. Prints the machine and the date first,
# so that its output can be kept as a record: tools/check_cuda.sh --speed | tee bench/results/NAME.txt
#   --built FOLDER    use what FOLDER holds (as build/cuda) instead of building it
#   --speed           also time the shapes of published models with random weights (60 GB of disk, 10 minutes)
set -uo pipefail
cd "$(dirname "$0")/.."
built=
speed=no
while [ $# -gt 0 ]; do
  case $1 in
    --built) built=$2; shift 2 ;;
    --speed) speed=yes; shift ;;
    *) echo "check_cuda: unknown argument $1; known: --built FOLDER, --speed" >&2; exit 2 ;;
  esac
done
if [ -z "$built" ]; then
  tools/install_dependencies.sh build || exit 1
  { cmake --preset cuda && cmake --build build/cuda; } >/dev/null || { echo "check_cuda: the build failed" >&2; exit 1; }
  built=build/cuda
fi

failed=()
step() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then echo "== $name: ok after $((SECONDS - start)) s"; else failed+=("$name"); echo "== $name: FAILED"; fi
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || exit 1
date -u +%F
step doctor "$built/tensorfold" doctor
for test in "$built"/tests/ops/cuda/cuda_*_test; do
  step "$(basename "$test")" "$test" --gtest_brief=1
done
step matrix "$built/tests/matrix/exactness_matrix" --device cuda

# Out-of-bounds accesses and races of whole models: the smallest of each family that the toy maker knows.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  for family in qwen3 qwen3_5_text qwen3_5_moe_text nemotron_h gpt_oss; do
    "$built/tensorfold" demo create "$folder/$family" --family "$family" --layers 4 --quant 4bit --quiet || { failed+=("demo $family"); continue; }
    for tool in memcheck racecheck; do
      step "$tool $family" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 5 \
        "$built/tensorfold" run "$folder/$family" --device cuda --max-tokens 12 --quiet "The quick brown fox" >/dev/null
    done
  done
else
  echo "compute-sanitizer is not installed; not run"
fi

if [ $speed = yes ]; then step speed bench/cuda_models.sh "$built"; fi
if [ ${#failed[@]} != 0 ]; then printf 'failed: %s\n' "${failed[@]}"; exit 1; fi
echo "all passed"
