# How tests reach ctest. All run in the repository root, so that a test finds its golden files as
# "tests/..."; a test that writes makes a temporary folder. Labels: upper or torch, cli, docs, and by
# file name: *_slow_test.* is slow, *_multiproc_test.* is multiproc. Those of *_mpirun_test.cc run in
# every process that mpirun starts, and only where MPI was found.

set(MILLRACE_TEST_TIMEOUT_S 300)
if(MILLRACE_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# Sets what every entry has: labels, timeout, working folder, environment.
function(millrace_test_properties test file)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "LABELS;ENVIRONMENT")
  if(file MATCHES "_slow_test\\.")
    list(APPEND arg_LABELS slow)
  elseif(file MATCHES "_multiproc_test\\.")
    list(APPEND arg_LABELS multiproc)
    set_property(TEST ${test} PROPERTY PROCESSORS 2)
  endif()
  set_property(TEST ${test} PROPERTY LABELS ${arg_LABELS})
  set_property(TEST ${test} PROPERTY TIMEOUT ${MILLRACE_TEST_TIMEOUT_S})
  set_property(TEST ${test} PROPERTY WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_property(TEST ${test} PROPERTY ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()

# Sets `var` to the GoogleTest filter that runs the suites of one source file.
function(millrace_suites_filter file var)
  # A stale filter would match nothing and pass, hence a new configure whenever the file changes.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(STRINGS "${file}" lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
  list(TRANSFORM lines REPLACE "^[A-Z_]+\\( *([A-Za-z0-9_]+).*" "\\1")
  list(REMOVE_DUPLICATES lines)
  if(NOT lines)
    message(SEND_ERROR "${file} has no test: a TEST line is expected to start with the macro's name and its suite")
  endif()
  # The three forms: plain, instantiated with a prefix, typed.
  list(TRANSFORM lines REPLACE "(.+)" "\\1.*:*/\\1.*:\\1/*")
  list(JOIN lines ":" filter)
  set(${var} "${filter}" PARENT_SCOPE)
endfunction()

# millrace_tests(NAME LABEL label): tests/NAME/**/*_test.cc as one program, millrace_NAME_test. With
# the label upper every test is its own ctest entry; with torch every file is one, since a process
# takes more than a second to load libtorch. Slow and multi-process files always are one entry.
function(millrace_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL" "")
  set(folder "${PROJECT_SOURCE_DIR}/tests/${name}")
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cc" "${folder}/*/*.cc")
  if(NOT MILLRACE_TESTS OR NOT sources)
    return()
  endif()

  set(under_mpirun ${sources})
  list(FILTER under_mpirun INCLUDE REGEX "_mpirun_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_mpirun_test\\.cc$")
  if(MPI_CXX_FOUND AND under_mpirun)
    millrace_mpirun_tests(${name} "${under_mpirun}")
  endif()

  set(target millrace_${name}_test)
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE millrace_${name} GTest::gmock_main)
  set_property(TARGET ${target} PROPERTY RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")

  set(one_by_one "*")
  list(FILTER sources INCLUDE REGEX "_test\\.cc$")
  foreach(source IN LISTS sources)
    if(arg_LABEL STREQUAL "torch" OR source MATCHES "_(slow|multiproc)_test\\.cc$")
      millrace_suites_filter("${source}" filter)
      file(RELATIVE_PATH test "${folder}" "${source}")
      string(REGEX REPLACE "(.*)\\.cc$" "${name}.\\1" test "${test}")
      add_test(NAME ${test} COMMAND ${target} --gtest_filter=${filter})
      millrace_test_properties(${test} "${source}" LABELS ${arg_LABEL} ENVIRONMENT OMP_NUM_THREADS=1)
      set_property(TEST ${test} PROPERTY FAIL_REGULAR_EXPRESSION "Running 0 tests")
      string(APPEND excluded ":${filter}")
    endif()
  endforeach()
  if(arg_LABEL STREQUAL "upper")
    # PRE_TEST: asks the program for its tests when ctest runs, not at each build.
    gtest_discover_tests(${target}
      DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 TEST_PREFIX "${name}." TEST_FILTER "*-${excluded}"
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      PROPERTIES LABELS upper TIMEOUT ${MILLRACE_TEST_TIMEOUT_S})
  endif()
endfunction()

# The sources as one program, millrace_NAME_mpirun_test. Each has a run of 2 processes and one of 4;
# tests of suites named *Failure end their world and have one of their own, of 2.
function(millrace_mpirun_tests name sources)
  set(target millrace_${name}_mpirun_test)
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE millrace_${name} GTest::gmock_main)
  set_property(TARGET ${target} PROPERTY RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  set(mpirun "${MPIEXEC_EXECUTABLE}" --oversubscribe --bind-to none)
  set(environment OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
  foreach(source IN LISTS sources)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    cmake_path(GET source STEM stem)
    millrace_suites_filter("${source}" filter)
    file(STRINGS "${source}" failures REGEX "^TEST(_F)?\\([A-Za-z]*Failure,")
    list(TRANSFORM failures REPLACE "^[A-Z_]+\\(([A-Za-z]*), *([A-Za-z0-9_]+).*" "\\1.\\2")
    foreach(run IN ITEMS 2 4 LISTS failures)
      set(processes 2)
      set(run_filter "${run}")
      if(run MATCHES "^[0-9]+$")
        set(processes ${run})
        set(run_filter "${filter}:-*Failure.*")
      endif()
      set(test ${name}.${stem}.${run})
      add_test(NAME ${test} COMMAND ${mpirun} -n ${processes} $<TARGET_FILE:${target}>
                                    --gtest_filter=${run_filter})
      millrace_test_properties(${test} "${source}" LABELS torch mpi ENVIRONMENT ${environment})
      set_property(TEST ${test} PROPERTY PROCESSORS 2)
      set_property(TEST ${test} PROPERTY FAIL_REGULAR_EXPRESSION "Running 0 tests")
    endforeach()
  endforeach()
endfunction()

# millrace_shell_tests(FOLDER LABELS label...): each *_test.sh of the folder, with the path of the
# light program in MILLRACE.
function(millrace_shell_tests folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LABELS")
  file(GLOB scripts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.sh")
  foreach(script IN LISTS scripts)
    get_filename_component(stem "${script}" NAME_WE)
    string(REPLACE "/" "." test "${folder}.${stem}")
    add_test(NAME ${test} COMMAND bash "${script}")
    millrace_test_properties(${test} "${script}" LABELS ${arg_LABELS}
                             ENVIRONMENT "MILLRACE=$<TARGET_FILE:millrace>")
    # A script that lacks the right to something says so by this status.
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endfunction()

# Each page that has a block marked "sh run" is one test: its commands are run as a reader would.
function(millrace_doc_tests)
  file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/*.md" "${PROJECT_SOURCE_DIR}/docs/*.md")
  foreach(page IN LISTS pages)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${page}")
    file(STRINGS "${page}" blocks REGEX "^```sh run")
    if(blocks)
      get_filename_component(name "${page}" NAME)
      add_test(NAME docs.${name} COMMAND "${PROJECT_SOURCE_DIR}/scripts/run_doc_commands.sh"
                                         $<TARGET_FILE_DIR:millrace> "${page}")
      millrace_test_properties(docs.${name} "${page}" LABELS docs torch)
    endif()
  endforeach()
endfunction()
