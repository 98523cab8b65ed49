# cmake -DPROGRAM=… [-DARGUMENT=…] -DEXPECTED=… -P check_output.cmake
# Fails unless the program returns 0 and prints exactly the expected line.
execute_process(COMMAND ${PROGRAM} ${ARGUMENT} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0 OR NOT output STREQUAL "${EXPECTED}\n")
  message(FATAL_ERROR "${PROGRAM} ${ARGUMENT}: returned ${status}, printed '${output}' and '${errors}'; expected '${EXPECTED}'")
endif()
