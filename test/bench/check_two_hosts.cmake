# cmake -D PROGRAM=… -D JSON=… -P check_two_hosts.cmake
# Fails unless the program returns 0 and writes JSON with a row for each kind of communication, all
# numbers finite, and a step that sends something.
file(REMOVE ${JSON})
execute_process(
  COMMAND ${PROGRAM} --layers 2 --width 16 --seconds 0.05 --runs 1 --ratios 1 --json ${JSON}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: returned ${status}, printed '${output}' and '${errors}'")
endif()
file(READ ${JSON} report)
set(fields ratio compute_ms step_ms bound_ms step_per_bound exposed_percent goodput_mbit link_percent
  comm_cpu_ms)
string(JSON rows LENGTH "${report}" table rows)
if(NOT rows EQUAL 2)
  message(FATAL_ERROR "${JSON}: ${rows} rows, not 2")
endif()
foreach(row RANGE 1)
  foreach(field IN LISTS fields)
    string(JSON found ERROR_VARIABLE error TYPE "${report}" table rows ${row} ${field} median)
    if(NOT found STREQUAL "NUMBER")
      message(FATAL_ERROR "${JSON}: row ${row}, ${field} is '${found}' ${error}")
    endif()
  endforeach()
  string(JSON sent GET "${report}" table rows ${row} goodput_mbit median)
  if(NOT sent GREATER 0)
    message(FATAL_ERROR "${JSON}: row ${row} sends ${sent} Mbit/s")
  endif()
endforeach()
