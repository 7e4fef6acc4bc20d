# Turns a folder of tests into a program, its entries in ctest, and the scripts and plugins beside it.

option(REPRISE_CHECK_TESTS "Under the undefined-behaviour sanitizer, check the code of the tests too" ON)

# What every test program shares; the same for all, so that they can share a precompiled header.
function(reprise_test_compile target)
  reprise_compile(${target})
  # Optimizing tests takes half of the compiler's time, and the tests run inside of the library and of LibTorch.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release,Sanitize>:-O0>)
  if(NOT REPRISE_CHECK_TESTS)
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE reprise GTest::gtest GTest::gmock rapidcheck Threads::Threads)
endfunction()

set(REPRISE_TEST_SHARDS 2 CACHE STRING "Parts into which each test program's run is divided")
set(reprise_test_environment OMP_NUM_THREADS=1 "REPRISE_LIBRARY_DIR=${PROJECT_BINARY_DIR}/lib"
  "REPRISE_BUILD_DIR=${PROJECT_BINARY_DIR}" "REPRISE_TORCH_DIR=${REPRISE_TORCH_DIR}")
if(REPRISE_SANITIZE)
  # Backward holds more locks at a time than the thread sanitizer's deadlock detector can count.
  list(APPEND reprise_test_environment
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/sanitizers/leak.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:detect_deadlocks=0")
endif()

# Freed memory is filled, small blocks too, so that reading it shows.
set(reprise_test_poisoned "GLIBC_TUNABLES=glibc.malloc.perturb=165:glibc.malloc.tcache_count=0")

# The entries of ctest that run `program`, named `name`.<part>, with further variables in the environment.
function(reprise_add_shards program name environment)
  math(EXPR last "${REPRISE_TEST_SHARDS} - 1")
  foreach(shard RANGE ${last})
    math(EXPR number "${shard} + 1")
    set(entry ${name}.${number}of${REPRISE_TEST_SHARDS})
    add_test(NAME ${entry} COMMAND ${program} --gtest_brief=1
      --gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${entry}.xml)
    set_tests_properties(${entry} PROPERTIES TIMEOUT 900 LABELS "${name};program" ENVIRONMENT
      "${reprise_test_environment};GTEST_TOTAL_SHARDS=${REPRISE_TEST_SHARDS};GTEST_SHARD_INDEX=${shard};${environment}")
    if(name STREQUAL device)
      # Its tests fill the device.
      set_tests_properties(${entry} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()

set(REPRISE_TEST_ONLY "" CACHE STRING "A filter of GoogleTest: only sources with tests that it takes are compiled; empty: all")

# Leaves, in a list of sources, those with a test that the filter takes, and those without any test.
function(reprise_keep_tests list filter)
  string(REPLACE "." "\\." pattern "${filter}")
  string(REPLACE "*" ".*" pattern "${pattern}")
  string(REPLACE ":" "|" pattern "${pattern}")
  foreach(source IN LISTS ${list})
    file(READ ${source} text)
    string(REGEX MATCHALL "\n(TYPED_TEST|TEST|TEST_F|TEST_P|RC_GTEST_PROP)\\([A-Za-z0-9_]+,[ \n]*[A-Za-z0-9_]+" tests "${text}")
    list(TRANSFORM tests REPLACE "^.*\\(([A-Za-z0-9_]+),[ \n]*([A-Za-z0-9_]+)$" "\\1.\\2")
    set(taken ${tests})
    list(FILTER taken INCLUDE REGEX "^(${pattern})$")
    if(tests AND NOT taken)
      list(REMOVE_ITEM ${list} ${source})
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

function(reprise_add_tests folder)
  set(dir ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cpp)
  # A plugin is a library of its own, the fuzzer a program, the consumer a project.
  list(FILTER sources EXCLUDE REGEX "/(plugins|fuzz|consumer)/")
  if(NOT TARGET reprise_cli)
    list(FILTER sources EXCLUDE REGEX "/fake_device/command_line_test.cpp$")
  endif()
  if(REPRISE_TEST_ONLY)
    reprise_keep_tests(sources "${REPRISE_TEST_ONLY}")
  endif()
  if(sources)
    set(program reprise_test_${folder})
    add_executable(${program} ${sources})
    reprise_test_compile(${program})
    target_compile_definitions(${program} PRIVATE REPRISE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
      REPRISE_TORCH_PYTHON="${REPRISE_TORCH_PYTHON}" REPRISE_LIBRARY_DIR="${PROJECT_BINARY_DIR}/lib")
    if(NOT folder MATCHES "^(core|plan)$")
      target_precompile_headers(${program} REUSE_FROM reprise_test_support)
    endif()
    target_link_libraries(${program} PRIVATE reprise_test_support)
    if(TARGET reprise_models AND NOT folder MATCHES "^(core|plan|libtorch|region)$")
      target_link_libraries(${program} PRIVATE reprise_models)
    endif()
    if(TARGET reprise_cli AND folder MATCHES "^(cli|fake_device)$")
      target_link_libraries(${program} PRIVATE reprise_app)
    endif()
    if(TARGET reprise_cli AND folder STREQUAL cli)
      target_compile_definitions(${program} PRIVATE REPRISE_CLI="$<TARGET_FILE:reprise_cli>")
      add_dependencies(${program} reprise_cli)
    endif()
    set(environment "")
    if(folder STREQUAL sweep)
      set(environment ${reprise_test_poisoned})
    endif()
    reprise_add_shards(${program} ${folder} "${environment}")
    # The operator interceptor has two variants; what stands on it is tested with both.
    if(folder MATCHES "^(libtorch|selective|estimate)$")
      reprise_add_shards(${program} ${folder}.generic REPRISE_INTERCEPTOR=generic)
    endif()
  endif()
  reprise_add_plugins(${folder})
  reprise_add_scripts(${folder})
endfunction()

function(reprise_add_plugins folder)
  file(GLOB plugins CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/plugins/*.cpp)
  foreach(plugin IN LISTS plugins)
    cmake_path(GET plugin STEM name)
    add_library(${name} MODULE ${plugin})
    reprise_compile(${name})
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0>)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PRIVATE reprise)
    # Where no script can load it, under a sanitizer or without LibTorch's Python half, the program is built without it.
    if(TARGET reprise_test_${folder} AND REPRISE_TORCH_PYTHON AND NOT REPRISE_SANITIZE)
      add_dependencies(reprise_test_${folder} ${name})
    endif()
  endforeach()
endfunction()

function(reprise_add_scripts folder)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.py)
  foreach(script IN LISTS scripts)
    cmake_path(GET script STEM name)
    set(python ${REPRISE_TORCH_PYTHON})
    if(NOT python)
      # LibTorch without Python has no torch that a script could import.
      file(STRINGS ${script} imports REGEX "^ *(import|from) torch" LIMIT_COUNT 1)
      if(imports)
        continue()
      endif()
      set(python python3)
    endif()
    add_test(NAME ${folder}.${name} COMMAND ${python} ${script} -v WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set(environment ${reprise_test_environment})
    if(name MATCHES "sweep")
      list(APPEND environment ${reprise_test_poisoned})
    endif()
    set_tests_properties(${folder}.${name} PROPERTIES TIMEOUT 900 LABELS ${folder}
      ENVIRONMENT "${environment}")
    # They compile, so they take longer than others and begin before them.
    if(folder STREQUAL packaging)
      set_tests_properties(${folder}.${name} PROPERTIES COST 100)
    endif()
  endforeach()
endfunction()

# Adds to a list of variables those with which an interpreter that was built without a sanitizer loads the address
# sanitizer's library before all others. That looks at once for the function that throws exceptions, so the library with
# that function is loaded, too.
function(reprise_preload_sanitizer list)
  foreach(name libasan.so libstdc++.so.6)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${name} OUTPUT_VARIABLE file OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND files ${file})
  endforeach()
  list(JOIN files " " files)
  list(FILTER ${list} EXCLUDE REGEX "^LSAN_OPTIONS=")
  # Python's own allocator would hide from the sanitizer which objects are freed, and what they refer to. What LibTorch and
  # the interpreter leak has one of their functions among the innermost six.
  list(APPEND ${list} "LD_PRELOAD=${files}" PYTHONMALLOC=malloc ASAN_OPTIONS=malloc_context_size=6
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/sanitizers/python_leak.supp:print_suppressions=0")
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# The tests of the Python package, by pytest, in two entries: those of compiled models, which take the longest, and the others.
function(reprise_add_python_tests)
  set(REPRISE_TEST_PYTHON "${REPRISE_TORCH_PYTHON}" CACHE FILEPATH "The interpreter that runs tests/python; needs pytest")
  set(environment ${reprise_test_environment} "PYTHONPATH=${PROJECT_BINARY_DIR}/python")
  if(REPRISE_SANITIZE)
    # No test takes the place of file descriptor 2 then, so that what the sanitizer writes is seen.
    list(APPEND options --capture=sys)
    reprise_preload_sanitizer(environment)
  endif()
  file(GLOB compiled RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/python/test_*compiled*.py)
  set(python.pytest tests/python "--ignore-glob=*compiled*")
  set(python.compiled ${compiled})
  foreach(entry python.compiled python.pytest)
    add_test(NAME ${entry} COMMAND ${REPRISE_TEST_PYTHON} -m pytest -q --color=no ${options} ${${entry}}
      --junitxml=${PROJECT_BINARY_DIR}/test-results/${entry}.xml WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    # They take the longest, so they begin first.
    set_tests_properties(${entry} PROPERTIES TIMEOUT 3600 LABELS python COST 1000 ENVIRONMENT "${environment}")
  endforeach()
endfunction()
