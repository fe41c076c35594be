# The compile options of every target, and one function each for a folder's library, a test, a benchmark, a fuzz target.

add_library(tensorfold_options INTERFACE)
target_include_directories(tensorfold_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -ffp-contract=off: the compiler may not fuse or split a multiply-add; arithmetic.md says where the fma's are.
# -fno-math-errno lets floor, sqrt and fma be instructions without changing a value.
target_compile_options(
  tensorfold_options
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -ffp-contract=off -fno-math-errno>)
if(TENSORFOLD_SANITIZE)
  target_compile_options(tensorfold_options INTERFACE -fsanitize=${TENSORFOLD_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(tensorfold_options INTERFACE -fsanitize=${TENSORFOLD_SANITIZE})
  # g++ warns that ThreadSanitizer does not follow the stand-alone fences inside Asio.
  if(TENSORFOLD_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tensorfold_options INTERFACE -Wno-tsan)
  endif()
  # g++ checks each pointer for null and alignment before each use, which triples the time to compile; types and sizes of
  # objects take a sixth more. A null pointer ends the program anyway; clang checks all four in the fuzz targets.
  if(TENSORFOLD_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tensorfold_options INTERFACE -fno-sanitize=null,alignment,vptr,object-size)
  endif()
endif()
if(TENSORFOLD_FUZZ)
  # Libraries report their branches to libFuzzer too.
  target_compile_options(tensorfold_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

add_custom_target(fuzz_targets)      # every fuzz target
add_custom_target(threaded_tests)    # every test labelled `threads`: what ThreadSanitizer runs
add_custom_target(quick_tests)       # every test not labelled slow, large or every_shape: what AddressSanitizer runs
add_custom_target(arithmetic_tests)  # every test labelled `arithmetic`: what arm64 runs
add_custom_target(cuda_tests)        # every test labelled `cuda`

# tests/support/test_paths.h, which every test and some benchmarks read.
add_library(tensorfold_test_paths STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/support/test_paths.cc)
target_include_directories(tensorfold_test_paths PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(tensorfold_test_paths PRIVATE tensorfold_options)
target_compile_definitions(
  tensorfold_test_paths PRIVATE TENSORFOLD_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                TENSORFOLD_SHARED_DATA="${CMAKE_SOURCE_DIR}/../shared/data")

# tf_library(<folder> SOURCES a.cc ... DEPS base ... LIBS external ...)
# The library of src/<folder>. DEPS are folders above it in style.md's list; LIBS are private to it.
function(tf_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND tensorfold_)
  if(ARG_SOURCES)
    add_library(tensorfold_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(tensorfold_${name} PUBLIC tensorfold_options ${ARG_DEPS} PRIVATE ${ARG_LIBS})
  else()
    add_library(tensorfold_${name} INTERFACE)
    target_link_libraries(tensorfold_${name} INTERFACE tensorfold_options ${ARG_DEPS})
  endif()
endfunction()

# tf_test(<name> SOURCES a_test.cc ... DEPS base ... [LIBS ...] [LABELS ...]): one GoogleTest program. Labels with a
# meaning: slow (not under sanitizers), every_shape (compares kernels with the definition over every shape: not under
# AddressSanitizer, where that takes many minutes), threads (under ThreadSanitizer), arithmetic (under emulation, too),
# large (skipped where its model is not there). A folder gives its tests the labels in FOLDER_LABELS as well.
function(tf_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND tensorfold_)
  list(APPEND ARG_LABELS ${FOLDER_LABELS})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(
    ${name} PRIVATE tensorfold_options tensorfold_test_paths ${ARG_DEPS} ${ARG_LIBS} GTest::gtest_main GTest::gmock)
  # Where the test itself computes little, it is compiled in three quarters of the time.
  if(NOT "arithmetic" IN_LIST ARG_LABELS)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  # One CTest entry per program: hundreds of cases would each pay a process start (seconds under qemu and TSan).
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 900)
  if("threads" IN_LIST ARG_LABELS)
    add_dependencies(threaded_tests ${name})
  endif()
  if("arithmetic" IN_LIST ARG_LABELS)
    add_dependencies(arithmetic_tests ${name})
  endif()
  if("cuda" IN_LIST ARG_LABELS)
    add_dependencies(cuda_tests ${name})
  endif()
  set(not_quick ${ARG_LABELS})
  list(FILTER not_quick INCLUDE REGEX "^(slow|large|every_shape)$")
  if(NOT not_quick)
    add_dependencies(quick_tests ${name})
  endif()
endfunction()

# tf_bench(<name> SOURCES ... DEPS ...): one Google Benchmark program.
function(tf_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND tensorfold_)
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE tensorfold_options ${ARG_DEPS} ${ARG_LIBS} benchmark::benchmark)
endfunction()

# tf_fuzz(<name> SOURCES ... DEPS ...): one libFuzzer program; its seed corpus is fuzz/corpus/<name>.
function(tf_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND tensorfold_)
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE tensorfold_options ${ARG_DEPS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${name})
endfunction()

# tf_python_test(<name> <file.py>): a pytest file that runs the program `tensorfold`, under the label `python` and
# alone, because it waits for replies. Its Python is that of .venv (tools/install_dependencies.sh venv); without it the test fails and says so.
function(tf_python_test name file)
  set(python ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  add_test(NAME ${name}
           COMMAND ${python} -m pytest -q -p no:cacheprovider --junitxml=${CMAKE_BINARY_DIR}/test-results/${name}.xml
                   ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  set_tests_properties(
    ${name} PROPERTIES LABELS python TIMEOUT 900 RUN_SERIAL TRUE ENVIRONMENT
                       "TENSORFOLD_BINARY=$<TARGET_FILE:tensorfold>;PYTHONDONTWRITEBYTECODE=1")
endfunction()
