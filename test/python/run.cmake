# cmake -D PROGRAM=… -D PYTHON=… -D SOURCE=… -D WORK=… -P run.cmake: what PROGRAM writes to the folder WORK
# is compared by compare.py.
if(NOT EXISTS "${PYTHON}")
  message("SKIP: Python's safetensors, which ./dev deps installs from PyPI")
  return()
endif()
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
execute_process(COMMAND "${PROGRAM}" "${WORK}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${PYTHON}" "${SOURCE}/compare.py" "${WORK}" COMMAND_ERROR_IS_FATAL ANY)
