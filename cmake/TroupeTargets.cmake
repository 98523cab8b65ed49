# One function per kind of target, so that the lists in each room hold names only.
include_guard(GLOBAL)

# Sources include each other as troupe/room/file.hpp, the path an installed tree has too.
# The link makes the source tree look like that.
set(TROUPE_INCLUDE_ROOT "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${TROUPE_INCLUDE_ROOT}")
file(CREATE_LINK "${PROJECT_SOURCE_DIR}" "${TROUPE_INCLUDE_ROOT}/troupe" SYMBOLIC)

set(TROUPE_TEST_DIR "${PROJECT_SOURCE_DIR}/test")

# What every target of ours is compiled with; never seen by an embedding project.
function(_troupe_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror
                         # Sharded and unsharded training are compared bit by bit: no fused multiply-add by chance.
                         -ffp-contract=off
                         # GCC 12 reports "literal" + std::string by mistake (its bug 105329).
                         $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
  if(TROUPE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    # Of the tests' own code only memory is watched: undefined behaviour doubles the time to compile it.
    cmake_path(IS_PREFIX TROUPE_TEST_DIR "${CMAKE_CURRENT_SOURCE_DIR}" of_test)
    if(of_test AND TROUPE_SANITIZE MATCHES "address")
      target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${TROUPE_SANITIZE})
  endif()
endfunction()

# troupe_library(<room> SOURCES file... [PUBLIC target...] [PRIVATE target...])
# Makes the static library troupe_<room>, alias troupe::<room>.
function(troupe_library room)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  add_library(troupe_${room} STATIC ${arg_SOURCES})
  add_library(troupe::${room} ALIAS troupe_${room})
  target_include_directories(troupe_${room} PUBLIC "$<BUILD_INTERFACE:${TROUPE_INCLUDE_ROOT}>")
  target_compile_features(troupe_${room} PUBLIC cxx_std_20)
  target_link_libraries(troupe_${room} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  _troupe_compile_options(troupe_${room})
endfunction()

# troupe_program(<name> SOURCES file... LINK target...)
function(troupe_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK})
  _troupe_compile_options(${name})
endfunction()

# troupe_test(<room>_<subject> SOURCES file... [LINK target...] [LABELS label...] [TIMEOUT seconds])
# One doctest program and one ctest entry; test/main.cpp is the entry point of all.
#
# Labels   the room, always. A test labelled asan or tsan is also run under that sanitizer; building
#          the target tests_<label> builds all programs with that label. What takes data from a
#          library that is not instrumented itself (CAF) is not labelled tsan: its reports would be false.
# Timeout  60 s by default, 10 times that under a sanitizer.
# Skipping a test that lacks a capability of the machine prints "SKIP: <capability>" and exits with 77.
function(troupe_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LINK;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(TROUPE_SANITIZE)
    math(EXPR arg_TIMEOUT "10 * ${arg_TIMEOUT}")
  endif()
  string(REGEX REPLACE "_.*" "" room ${name})
  list(PREPEND arg_LABELS ${room})
  list(REMOVE_DUPLICATES arg_LABELS)

  if(NOT TARGET troupe_test_main)
    add_library(troupe_test_main OBJECT ${PROJECT_SOURCE_DIR}/test/main.cpp)
    target_link_libraries(troupe_test_main PUBLIC doctest::doctest)
    target_compile_features(troupe_test_main PUBLIC cxx_std_20)
    _troupe_compile_options(troupe_test_main)
  endif()
  add_executable(test_${name} ${arg_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${arg_LINK} troupe_test_main)
  target_compile_definitions(test_${name} PRIVATE TROUPE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  _troupe_compile_options(test_${name})

  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT}
    LABELS "${arg_LABELS}"
    SKIP_RETURN_CODE 77
    # The trainers' ranks are the threads; a pool inside each would only compete with them.
    ENVIRONMENT OPENBLAS_NUM_THREADS=1)
  foreach(label IN LISTS arg_LABELS)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} test_${name})
  endforeach()
endfunction()

function(troupe_print_summary)
  message(STATUS "Troupe ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE} build, compiler ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  set(gloo "no (Debian: libgloo-dev), so no worlds of processes")
  if(TARGET troupe_gloo)
    set(gloo yes)
  endif()
  message(STATUS "  Gloo ${gloo}")
  message(STATUS "  tests ${TROUPE_BUILD_TESTS}, examples ${TROUPE_BUILD_EXAMPLES}, bench ${TROUPE_BUILD_BENCH}, sanitizers '${TROUPE_SANITIZE}'")
endfunction()
