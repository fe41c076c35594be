#!/usr/bin/env bash
# What is known of the CUDA backend on the machine it runs on. Prints the machine, the date and the commit first, so that
# its output can be kept as a record: tools/check_cuda.sh | tee bench/results/NAME.txt
# Usage: tools/check_cuda.sh [--built FOLDER] [--limit SECONDS] [--speed] [PART...]     default: doctor ops matrix sanitizer
#   doctor             whether a GPU is there, and rows are computed alike in passes of all sizes
#   ops[:NAME]         the op tests, or those whose name contains NAME; a test that is skipped counts as failed
#   memcheck[:NAME]    the op tests under compute-sanitizer's memcheck
#   matrix[:K/N]       the exactness matrix on the device, or every N-th model of it, from the K-th on
#   sanitizer[:TOOL]   whole models under compute-sanitizer: memcheck and racecheck, or one of them
#   bench[:NAME]       the op benchmarks, or those whose name contains NAME
#   speed[:MODEL]      shapes of published models with random weights (20 GB at a time, 10 minutes); --speed adds all
#   --built FOLDER     use what FOLDER holds (as build/cuda) instead of building what the parts need
#   --limit SECONDS    for each step; without: 300, the matrix, benchmarks and speed 560. A kernel that hangs ends there.
# Exit code 0: all passed; 1: a step failed; 2: usage.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export PATH="$PATH:/usr/local/cuda/bin"

fail() { echo "check_cuda: $*" >&2; exit "${code:-1}"; }
usage() { code=2 fail "$1; known: --built FOLDER, --limit SECONDS, --speed, and the parts doctor ops memcheck matrix sanitizer bench speed"; }

built=
limit=
parts=()
speed=no
while [ $# -gt 0 ]; do
  case $1 in
    --built | --limit)
      [ $# -ge 2 ] || usage "$1 needs a value"
      if [ "$1" = --built ]; then built=$2; else limit=$2; fi
      shift 2 ;;
    --speed) speed=yes; shift ;;
    doctor | ops | ops:* | memcheck | memcheck:* | matrix | matrix:*/* | sanitizer | bench | bench:* | speed | speed:*) parts+=("$1"); shift ;;
    sanitizer:memcheck | sanitizer:racecheck) parts+=("$1"); shift ;;
    *) usage "unknown argument $1" ;;
  esac
done
[ ${#parts[@]} != 0 ] || parts=(doctor ops matrix sanitizer)
[ $speed = no ] || parts+=(speed)
[ -z "$built" ] || [ -d "$built" ] || fail "--built $built: no such folder"

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
log=$folder/log
failed=()
not_run=()

# step NAME SECONDS COMMAND...: what the command prints goes to the record as it comes, and to $log. `check`, a function's
# name, must then hold too.
check=true
step() {
  local name=$1 seconds=${limit:-$2} start=$SECONDS status
  shift 2
  echo "== $name"
  timeout --kill-after=15 "$seconds" "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  if [ "$status" = 0 ] && $check; then
    echo "== $name: ok after $((SECONDS - start)) s"
    return
  fi
  failed+=("$name")
  case $status in
    124 | 137) echo "== $name: FAILED, stopped after $((SECONDS - start)) s" ;;
    *) echo "== $name: FAILED (exit code $status)" ;;
  esac
}

# ---- checks of what a step printed

has_exact_gpu() {
  grep -q 'do not depend on the rows of a pass' "$log" && return
  echo "check_cuda: doctor found no GPU that it could check"
  false
}
nothing_skipped() {
  grep -q 'PASSED' "$log" && ! grep -q 'SKIPPED' "$log" && return
  echo "check_cuda: tests were skipped, or none ran"
  false
}
has_columns() {
  grep -Eq ' ok( |$)' "$log" && return
  echo "check_cuda: no model was run"
  false
}
# A program that ends before the sanitizer sees it start a kernel leaves no summary.
has_summary() {
  grep -Eq 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: .*\(0 errors' "$log" && return
  echo "check_cuda: the sanitizer says nothing of 0 errors"
  false
}

# ---- parts

# Then a tool and a program. Op tests that are for the host alone are no error.
sanitizer=(compute-sanitizer --error-exitcode 9 --print-limit 5 --require-cuda-init no --tool)

# need_sanitizer PART
need_sanitizer() {
  command -v compute-sanitizer >/dev/null && return
  not_run+=("$1: compute-sanitizer is not installed")
  false
}

# run_tests SUFFIX WORD COMMAND...: each op test whose name contains WORD.
run_tests() {
  local suffix=$1 word=$2 test any=no
  shift 2
  for test in "$built"/tests/ops/cuda/cuda_*_test "$built/tests/device/device_test"; do
    [ -x "$test" ] || continue
    [[ $(basename "$test") == *"$word"* ]] || continue
    any=yes
    step "$(basename "$test")$suffix" 300 "$@" "$test" --gtest_brief=1
  done
  [ $any = yes ] || { echo "check_cuda: no op test $word in $built/tests/ops/cuda"; failed+=("ops $word"); }
}

run_models() {
  local tool family
  for family in qwen3 qwen3_5_text qwen3_5_moe_text nemotron_h gpt_oss; do
    [ -d "$folder/$family" ] ||
      "$built/tensorfold" demo create "$folder/$family" --family "$family" --layers 4 --quant 4bit --quiet ||
      { failed+=("demo $family"); continue; }
    for tool in "$@"; do
      step "$tool $family" 300 "${sanitizer[@]}" "$tool" "$built/tensorfold" run "$folder/$family" \
        "The quick brown fox" --device cuda --gpu-memory 4GB --max-tokens 12 --quiet
    done
  done
}

run_benches() {
  local program any=no
  for program in "$built"/bench/cuda_*_bench; do
    [ -x "$program" ] || continue
    [[ $(basename "$program") == *"$1"* ]] || continue
    any=yes
    step "$(basename "$program")" 560 "$program"
  done
  [ $any = yes ] || { echo "check_cuda: no benchmark $1 in $built/bench"; failed+=("bench $1"); }
}

run_part() {
  local word=
  [[ $1 != *:* ]] || word=${1#*:}
  case $1 in
    doctor) check=has_exact_gpu step doctor 300 "$built/tensorfold" doctor ;;
    ops*) check=nothing_skipped run_tests "" "$word" ;;
    memcheck*)
      if need_sanitizer memcheck; then check=nothing_skipped run_tests " memcheck" "$word" "${sanitizer[@]}" memcheck; fi ;;
    matrix*)
      # 40 tokens: two pages, as the records in bench/results. The fixtures are here wherever the program was built.
      check=has_columns step "matrix${word:+ $word}" 560 "$built/tests/matrix/exactness_matrix" --device cuda --tokens 40 \
        --fixtures tests/golden/models ${word:+--part "$word"} ;;
    sanitizer*)
      if need_sanitizer sanitizer; then
        if [ -n "$word" ]; then check=has_summary run_models "$word"; else check=has_summary run_models memcheck racecheck; fi
      fi ;;
    bench*) run_benches "$word" ;;
    speed*) step "speed${word:+ $word}" 560 bench/cuda_models.sh "$built" ${word:+"$word"} ;;
  esac
}

# ---- what the parts need

if [ -z "$built" ]; then
  # Where nothing can be fetched, retries would eat the minutes that the machine is there for.
  timeout 120 tools/install_dependencies.sh build || echo "check_cuda: packages could not be installed; building all the same"
  targets=()
  for part in "${parts[@]}"; do
    case $part in
      ops* | memcheck*) targets+=(cuda_tests cuda_launch_list_test device_test) ;;
      matrix*) targets+=(exactness_matrix) ;;
      bench*) for source in bench/cuda_*_bench.cc; do targets+=("$(basename "$source" .cc)"); done ;;
      *) targets+=(tensorfold) ;;
    esac
  done
  { cmake --preset cuda && cmake --build build/cuda --target "${targets[@]}"; } >"$folder/build" 2>&1 ||
    { tail -n 40 "$folder/build" >&2; fail "the build failed"; }
  built=build/cuda
fi

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "nvidia-smi does not run here"
echo "$(date -u +%F) $(git describe --always --dirty 2>/dev/null || true)"
for part in "${parts[@]}"; do run_part "$part"; done
[ ${#not_run[@]} = 0 ] || printf 'not run: %s\n' "${not_run[@]}"
if [ ${#failed[@]} != 0 ]; then printf 'failed: %s\n' "${failed[@]}"; exit 1; fi
[ ${#not_run[@]} = 0 ] && echo "all passed" || echo "all others passed"
