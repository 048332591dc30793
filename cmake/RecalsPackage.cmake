# The CMake package for C++ users, inside the Python package: recals/share/cmake/recals, with the headers that they may
# include in recals/include. The build tree holds the same layout, so that it can be used, and tested, like an
# installed one.

set(_recals_package "${PROJECT_BINARY_DIR}/python/recals")
set(_recals_public_headers runtime/counters.h runtime/graph_passes.h runtime/cpu_memory.h runtime/memory_tracker.h)

include(CMakePackageConfigHelpers)
write_basic_package_version_file(
  "${_recals_package}/share/cmake/recals/recalsConfigVersion.cmake"
  VERSION "${PROJECT_VERSION}"
  COMPATIBILITY SameMinorVersion)

# An installed package finds LibTorch beside itself; the build tree has nothing beside it.
set(RECALS_TORCH_DIR_OF_BUILD_TREE "")
configure_file("${PROJECT_SOURCE_DIR}/cmake/recalsConfig.cmake.in" "${PROJECT_BINARY_DIR}/generated/recalsConfig.cmake"
               @ONLY)
set(RECALS_TORCH_DIR_OF_BUILD_TREE "${RECALS_TORCH_DIR}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/recalsConfig.cmake.in"
               "${_recals_package}/share/cmake/recals/recalsConfig.cmake" @ONLY)

install(FILES "${PROJECT_BINARY_DIR}/generated/recalsConfig.cmake"
              "${_recals_package}/share/cmake/recals/recalsConfigVersion.cmake"
        DESTINATION recals/share/cmake/recals COMPONENT python)

foreach(header ${_recals_public_headers})
  get_filename_component(folder "${header}" DIRECTORY)
  file(MAKE_DIRECTORY "${_recals_package}/include/${folder}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${header}" "${_recals_package}/include/${header}" SYMBOLIC)
  install(FILES "${PROJECT_SOURCE_DIR}/${header}" DESTINATION recals/include/${folder} COMPONENT python)
endforeach()
file(MAKE_DIRECTORY "${_recals_package}/include")
file(CREATE_LINK "${PROJECT_BINARY_DIR}/generated/recals" "${_recals_package}/include/recals" SYMBOLIC)
install(FILES "${PROJECT_BINARY_DIR}/generated/recals/export.h" DESTINATION recals/include/recals COMPONENT python)
