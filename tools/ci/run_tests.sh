#!/usr/bin/env bash
# Runs the tests of a build folder, as many at once as there are CPUs, and closes with the counts of single cases: N passed,
# N failed, N skipped.
#   tools/ci/run_tests.sh BUILD_FOLDER [ctest options]
set -uo pipefail
cd "$(dirname "$0")/../.."
build=$1
shift
results=$PWD/$build/test-results
rm -rf "$results"
mkdir -p "$results"
GTEST_OUTPUT="xml:$results/" ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure \
  --output-junit "$results/ctest.xml" "$@"
status=$?
python3 tools/ci/count_tests.py "$results" || status=1
exit $status
