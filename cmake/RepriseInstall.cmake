# What `cmake --install` writes: headers, library, command line, and the package that
# find_package(reprise 0.2 CONFIG) reads, with the file that finds LibTorch beside it.
if(NOT TARGET reprise)
  return()
endif()
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/reprise)
# With the link path, for LibTorch lives wherever it was unpacked and no system folder knows it.
# Named, since CMake leaves out folders inside the source tree, where the virtual environment may be.
set_target_properties(reprise PROPERTIES INSTALL_RPATH "${REPRISE_TORCH_DIR}/lib" INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS reprise EXPORT reprise)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/reprise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT reprise NAMESPACE reprise:: FILE reprise-targets.cmake DESTINATION ${package})
if(TARGET reprise_cli)
  file(RELATIVE_PATH to_library /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(reprise_cli PROPERTIES
    INSTALL_RPATH "$ORIGIN/${to_library};${REPRISE_TORCH_DIR}/lib" INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS reprise_cli)
endif()

configure_package_config_file(cmake/reprise-config.cmake.in ${PROJECT_BINARY_DIR}/reprise-config.cmake
  INSTALL_DESTINATION ${package})
# 0.x versions promise nothing to each other.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/reprise-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/reprise-config.cmake ${PROJECT_BINARY_DIR}/reprise-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/RepriseTorch.cmake DESTINATION ${package})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
