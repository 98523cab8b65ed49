# Seeded bugs: proof that a property test finds what it is meant to find.
#
# troupe_mutant(<bug> SOURCE <room>/<file>.cpp FROM <text> TO <text>
#               TEST <source>... [LINK <target>...] [TIMEOUT <seconds>])
#   Makes test_<room>_mutant_<bug>: the sources of TEST, and a copy of SOURCE in which FROM, which
#   must occur exactly once, is replaced by TO. The copy is linked before the library of the room,
#   whose own object is then not taken. The ctest entry <room>_mutant_<bug> (labels: the room, and
#   mutant) passes only if the program FINDS the bug: it prints
#       violated: <property> (seed <n>)
#   and exits with 42. A crash, a time-out or another failure does not count.
#
# troupe_mutant(<name> CONTROL SOURCE <room>/<file>.cpp TEST ... LINK ...)
#   The same program without a bug: passes only if it exits with 0.
#
# TEST brings its own main(). Mutants are compiled without warnings and without assertions (they may
# not stop the program before the property does), and not at all under a sanitizer.

# As a script: runs one program and judges what it did.
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND "${PROGRAM}" RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE error)
  message(STATUS "exit ${code}\n${output}${error}")
  if(CONTROL)
    if(NOT code STREQUAL "0")
      message(FATAL_ERROR "The program without a bug must exit with 0.")
    endif()
  elseif(NOT code STREQUAL "42" OR NOT output MATCHES "violated: [^\n]+ \\(seed [0-9]+\\)\n")
    message(FATAL_ERROR "The bug was not found: expected exit 42 and the violated property with its seed.")
  endif()
  return()
endif()

include_guard(GLOBAL)
set(_TROUPE_MUTANTS_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

# Writes the mutated copy at configure time, again whenever the source has changed.
function(_troupe_mutate source from to copy)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
  file(READ "${source}" text)
  string(FIND "${text}" "${from}" first)
  string(FIND "${text}" "${from}" last REVERSE)
  if(from STREQUAL "" OR first EQUAL -1)
    message(FATAL_ERROR "${source} does not contain the text to mutate:\n${from}")
  elseif(NOT first EQUAL last)
    message(FATAL_ERROR "${source} contains the text to mutate more than once:\n${from}")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
  file(WRITE "${copy}.new" "${text}")
  file(COPY_FILE "${copy}.new" "${copy}" ONLY_IF_DIFFERENT)
endfunction()

function(troupe_mutant bug)
  if(TROUPE_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "CONTROL" "SOURCE;FROM;TO;TIMEOUT" "TEST;LINK")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  string(REGEX REPLACE "/.*" "" room "${arg_SOURCE}")
  cmake_path(GET arg_SOURCE FILENAME file)
  set(test "${room}_mutant_${bug}")
  set(target "test_${test}")

  # All mutants with the same test share its objects.
  string(MD5 key "${CMAKE_CURRENT_SOURCE_DIR};${arg_TEST};${arg_LINK}")
  string(SUBSTRING "${key}" 0 8 key)
  set(objects "troupe_mutant_test_${key}")
  if(NOT TARGET ${objects})
    add_library(${objects} OBJECT ${arg_TEST})
    target_link_libraries(${objects} PRIVATE ${arg_LINK})
    _troupe_compile_options(${objects})
  endif()

  set(sources $<TARGET_OBJECTS:${objects}>)
  if(NOT arg_CONTROL)
    set(copy "${CMAKE_CURRENT_BINARY_DIR}/mutants/${bug}/${file}")
    _troupe_mutate("${PROJECT_SOURCE_DIR}/${arg_SOURCE}" "${arg_FROM}" "${arg_TO}" "${copy}")
    list(PREPEND sources "${copy}")
  endif()
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE ${arg_LINK})
  target_compile_definitions(${target} PRIVATE NDEBUG)
  target_compile_options(${target} PRIVATE -w -ffp-contract=off)

  add_test(NAME ${test}
    COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:${target}>" "-DCONTROL=${arg_CONTROL}"
            -P "${_TROUPE_MUTANTS_SCRIPT}")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${room};mutant")
  foreach(label IN ITEMS ${room} mutant)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${target})
  endforeach()
endfunction()
