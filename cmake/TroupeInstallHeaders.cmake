# Run by `cmake --install`: copies the public headers and what they include, so that the lists below
# are all that has to be kept. TroupeInstall.cmake sets troupe_source and troupe_include_dir.
cmake_policy(PUSH)
cmake_policy(VERSION 3.25) # install scripts begin with none

# Public: the rooms that a trainer uses, and the types that their headers only declare
# (World::device and the streams to compute on, LaunchRecord).
file(GLOB troupe_queue RELATIVE "${troupe_source}" "${troupe_source}/runtime/*.hpp" "${troupe_source}/layers/*.hpp")
list(REMOVE_ITEM troupe_queue runtime/compute_log.hpp runtime/rank_context.hpp runtime/rank_statement.hpp runtime/runtime_impl.hpp runtime/secret_file.hpp)
list(APPEND troupe_queue comm/host_stream.hpp actors/rank_state.hpp)

set(troupe_headers)
while(troupe_queue)
  list(POP_FRONT troupe_queue header)
  if(header IN_LIST troupe_headers)
    continue()
  endif()
  list(APPEND troupe_headers "${header}")
  file(STRINGS "${troupe_source}/${header}" includes REGEX "^ *# *include *[\"<]troupe/")
  list(TRANSFORM includes REPLACE "^[^\"<]*[\"<]troupe/([^\">]+)[\">].*$" "\\1")
  list(APPEND troupe_queue ${includes})
endwhile()

cmake_path(ABSOLUTE_PATH troupe_include_dir BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
foreach(header IN LISTS troupe_headers)
  cmake_path(GET header PARENT_PATH room)
  file(INSTALL "${troupe_source}/${header}" DESTINATION "${troupe_include_dir}/troupe/${room}")
endforeach()
cmake_policy(POP)
