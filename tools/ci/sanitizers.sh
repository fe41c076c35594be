#!/usr/bin/env bash
# AddressSanitizer and UndefinedBehaviorSanitizer over all tests but the slow, the large, those of the program itself and
# those that compare kernels over every shape (the same kernels run in the tests of the engine and of whole models);
# ThreadSanitizer over what has threads.
#   tools/ci/sanitizers.sh [asan] [tsan]        default: both
set -uo pipefail
cd "$(dirname "$0")/../.."
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

asan() {
  cmake --preset asan >/dev/null && cmake --build build/asan --target quick_tests &&
    tools/ci/run_tests.sh build/asan -LE 'slow|python|large|every_shape'
}

tsan() {
  cmake --preset tsan >/dev/null && cmake --build build/tsan --target threaded_tests &&
    tools/ci/run_tests.sh build/tsan -L threads
}

status=0
for job in "${@:-asan tsan}"; do
  for each in $job; do "$each" || status=1; done
done
exit $status
