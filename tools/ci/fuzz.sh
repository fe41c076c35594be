#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while, from its corpus in the tree, as many at once as there are CPUs. Prints a
# line per target, and what a failed one said. A crashing input is left in build/fuzz.
#   tools/ci/fuzz.sh [SECONDS]        default: 60 each
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target fuzz_targets

# One target's run; its output goes to a log. New inputs go to the first folder; the tree's corpus is only read.
fuzz() {
  local target=$1 name
  name=$(basename "$target")
  mkdir -p "build/fuzz/corpus/$name" "fuzz/corpus/$name"
  rm -f "build/fuzz/$name.ok"
  if "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
    -print_funcs=0 -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "fuzz/corpus/$name" \
    >"build/fuzz/$name.log" 2>&1; then
    touch "build/fuzz/$name.ok"
  fi
}
export -f fuzz
export seconds
targets=()
for target in build/fuzz/fuzz/*_fuzz; do
  if [ -f "$target" ] && [ -x "$target" ]; then targets+=("$target"); fi
done
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'

passed=0
failed=0
for target in "${targets[@]}"; do
  name=$(basename "$target")
  log=build/fuzz/$name.log
  if [ -f "build/fuzz/$name.ok" ]; then
    passed=$((passed + 1))
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, no finding"
  else
    failed=$((failed + 1))
    { grep -v '^stat::\|^NEW_FUNC\|# Uses: ' "$log" || true; } | tail -n 200
    echo "failed: $name (its input is build/fuzz/$name-*)"
    { grep 'ERROR: \|runtime error: \|SUMMARY: ' "$log" || true; } | head -n 5 | sed 's/^/    /'
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
