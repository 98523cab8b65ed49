# Runs a program and checks how it ended.
#   cmake -D PROGRAM=path -D "ARGUMENTS=a;b" -D EXIT_CODE=0 -D STDOUT=regex -D STDERR=regex -P run_program.cmake
# A stream without a regex has to be empty.
execute_process(COMMAND ${PROGRAM} ${ARGUMENTS} RESULT_VARIABLE exit_code OUTPUT_VARIABLE out ERROR_VARIABLE err)
message("${out}${err}")
if(NOT exit_code STREQUAL EXIT_CODE)
  message(FATAL_ERROR "it ended with ${exit_code}, not ${EXIT_CODE}")
endif()
function(check stream text regex)
  if(regex STREQUAL "" AND NOT text STREQUAL "")
    message(FATAL_ERROR "${stream} is not empty")
  elseif(NOT regex STREQUAL "" AND NOT text MATCHES "${regex}")
    message(FATAL_ERROR "${stream} has nothing that matches ${regex}")
  endif()
endfunction()
check(stdout "${out}" "${STDOUT}")
check(stderr "${err}" "${STDERR}")
