# What `cmake --install` copies: the libraries, the headers that an embedding project reaches, a CMake
# package (troupe::troupe, and troupe::<room>), a pkg-config file, and troupe-run. All of it may be moved
# afterwards.
include_guard(GLOBAL)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# troupe_install(<room>...)
# Each room stands before the rooms that it uses: the linker reads static libraries in that order.
function(troupe_install)
  set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/troupe")
  set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  set(with_gloo OFF)
  if("gloo" IN_LIST ARGN)
    set(with_gloo ON)
  endif()

  foreach(room IN LISTS ARGN)
    set_target_properties(troupe_${room} PROPERTIES EXPORT_NAME ${room})
    install(TARGETS troupe_${room} EXPORT troupeTargets
      ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  endforeach()
  install(TARGETS troupe-run RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(CODE "set(troupe_source [==[${PROJECT_SOURCE_DIR}]==])\nset(troupe_include_dir [==[${CMAKE_INSTALL_INCLUDEDIR}]==])")
  install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/TroupeInstallHeaders.cmake")

  install(EXPORT troupeTargets NAMESPACE troupe:: DESTINATION "${package_dir}")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/troupeConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/troupeConfig.cmake" INSTALL_DESTINATION "${package_dir}"
    NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  # Until 1.0 a minor version may change what trainers use.
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/troupeConfig.cmake" "${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake"
    DESTINATION "${package_dir}")
  # In a folder of its own: no other find module of ours is meant for who embeds Troupe.
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindCAF.cmake" DESTINATION "${package_dir}/modules")

  # Paths in troupe.pc start from where that file lies.
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig"
             OUTPUT_VARIABLE to_prefix)
  cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY "\${prefix}" OUTPUT_VARIABLE libdir)
  cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_INCLUDEDIR BASE_DIRECTORY "\${prefix}" OUTPUT_VARIABLE includedir)
  list(TRANSFORM ARGN PREPEND "-ltroupe_" OUTPUT_VARIABLE libraries)
  list(JOIN libraries " " libraries)
  set(gloo_library "")
  if(with_gloo)
    set(gloo_library " -lgloo")
  endif()
  configure_file("${PROJECT_SOURCE_DIR}/cmake/troupe.pc.in" "${PROJECT_BINARY_DIR}/troupe.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/troupe.pc" DESTINATION "${pkgconfig_dir}")
endfunction()
