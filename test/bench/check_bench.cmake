# cmake -D PROGRAM=… -D JSON=… -P check_bench.cmake
# Fails unless `PROGRAM --quick --json JSON` returns 0 and writes JSON that has every table with its
# fields, all numbers finite.
file(REMOVE ${JSON})
execute_process(COMMAND ${PROGRAM} --quick --json ${JSON}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: returned ${status}, printed '${output}' and '${errors}'")
endif()
file(READ ${JSON} report)

# The value at the path is of this type (STRING, NUMBER, BOOLEAN, ARRAY, OBJECT).
function(expect type)
  string(JSON found ERROR_VARIABLE error TYPE "${report}" ${ARGN})
  if(NOT found STREQUAL type)
    message(FATAL_ERROR "${JSON}: ${ARGN} is '${found}', not ${type} ${error}")
  endif()
endfunction()

expect(BOOLEAN quick)
foreach(field cpu compiler build_type)
  expect(STRING machine ${field})
endforeach()
foreach(field cores load_average clock_ns wake_us)
  expect(NUMBER machine ${field})
endforeach()
expect(BOOLEAN machine quiet)

# table <number> <name> <least rows> TEXT field... NUMBER field... SPREAD field...
function(expect_table index name rows_min)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "TEXT;NUMBER;SPREAD")
  string(JSON found GET "${report}" tables ${index} name)
  if(NOT found STREQUAL name)
    message(FATAL_ERROR "${JSON}: table ${index} is '${found}', not '${name}'")
  endif()
  expect(STRING tables ${index} title)
  expect(ARRAY tables ${index} notes)
  string(JSON rows LENGTH "${report}" tables ${index} rows)
  if(rows LESS rows_min)
    message(FATAL_ERROR "${JSON}: table '${name}' has ${rows} rows, fewer than ${rows_min}")
  endif()
  math(EXPR last "${rows} - 1")
  foreach(row RANGE ${last})
    foreach(field IN LISTS arg_TEXT)
      expect(STRING tables ${index} rows ${row} ${field})
    endforeach()
    foreach(field IN LISTS arg_NUMBER)
      expect(NUMBER tables ${index} rows ${row} ${field})
    endforeach()
    foreach(field IN LISTS arg_SPREAD)
      foreach(part median min max)
        expect(NUMBER tables ${index} rows ${row} ${field} ${part})
      endforeach()
    endforeach()
  endforeach()
endfunction()

string(JSON tables LENGTH "${report}" tables)
if(NOT tables EQUAL 5)
  message(FATAL_ERROR "${JSON}: ${tables} tables, not 5")
endif()
expect_table(0 layer_events 22 TEXT event system comm_thread goal_begin_p50_us NUMBER ranks
  SPREAD begin_p50_us begin_p99_us begin_mean_us end_p50_us end_p99_us)
expect_table(1 event_cost 8 TEXT path goal NUMBER buckets ratio_to_10 SPREAD event_ns)
expect_table(2 collectives 8 TEXT collective dtype goal NUMBER ranks part_kib
  SPREAD time_us gb_per_s memcpy_gb_per_s ratio ratio_in_step)
expect_table(3 thousand_layers 2 TEXT goal NUMBER layers
  SPREAD pair_mean_us pair_p50_us pair_p99_us total_ms total_ratio)
expect_table(4 store 1 NUMBER clients SPREAD join_ms barrier_ms)
