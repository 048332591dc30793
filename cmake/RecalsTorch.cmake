# The LibTorch that the torch package of the configured Python brings, as imported targets:
#
#   recals_torch         torch_cpu and c10, for everything that runs without Python
#   recals_torch_python  adds torch_python and Python's headers, for the binding only
#
# torch's own CMake package is not used: on PyPI's CUDA wheel it is a fatal error without a CUDA toolkit, it links
# libraries that nothing here needs, and it changes global flags. Needs find_package(Python) before.
#
# Sets RECALS_TORCH_DIR (the package's folder), RECALS_TORCH_VERSION ("2.15.0") and RECALS_TORCH_VERSION_FULL
# ("2.15.0+cu132").

# find_spec finds the package without importing it: importing costs seconds.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE RECALS_TORCH_DIR
  OUTPUT_STRIP_TRAILING_WHITESPACE)
file(TO_CMAKE_PATH "${RECALS_TORCH_DIR}" RECALS_TORCH_DIR)

if(NOT EXISTS "${RECALS_TORCH_DIR}/version.py" OR NOT EXISTS "${RECALS_TORCH_DIR}/lib/libtorch_cpu.so")
  message(
    FATAL_ERROR
      "Recals: the Python that builds it has no usable torch package: ${Python_EXECUTABLE}\n"
      "Install one there:  ${Python_EXECUTABLE} -m pip install 'torch>=2.11'\n"
      "or name another Python:  cmake -DPython_EXECUTABLE=/path/to/python ...\n"
      "(or let ./dev build prepare an environment and build in it)")
endif()

file(STRINGS "${RECALS_TORCH_DIR}/version.py" _recals_version_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*'([^']+)'.*" "\\1" RECALS_TORCH_VERSION_FULL "${_recals_version_line}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+\\.[0-9]+" RECALS_TORCH_VERSION "${RECALS_TORCH_VERSION_FULL}")
if(RECALS_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "Recals needs torch 2.11 or newer, and ${RECALS_TORCH_DIR} is ${RECALS_TORCH_VERSION_FULL}.\n"
                      "Install a newer one:  ${Python_EXECUTABLE} -m pip install 'torch>=2.11'")
endif()
message(STATUS "Recals: torch ${RECALS_TORCH_VERSION_FULL} in ${RECALS_TORCH_DIR}")

foreach(_recals_lib c10 torch_cpu torch_python)
  add_library(recals_lib${_recals_lib} SHARED IMPORTED)
  # The soname is the file's name in every wheel; saying so keeps absolute paths out of what gets linked.
  set_target_properties(
    recals_lib${_recals_lib} PROPERTIES IMPORTED_LOCATION "${RECALS_TORCH_DIR}/lib/lib${_recals_lib}.so"
                                        IMPORTED_SONAME "lib${_recals_lib}.so")
endforeach()

add_library(recals_torch INTERFACE IMPORTED)
target_include_directories(recals_torch SYSTEM INTERFACE "${RECALS_TORCH_DIR}/include"
                                                         "${RECALS_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(recals_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_compile_features(recals_torch INTERFACE cxx_std_20)
target_link_libraries(recals_torch INTERFACE recals_libtorch_cpu recals_libc10)
# The CUDA wheel's libtorch_cpu needs libraries of other packages, which are found when Python has loaded torch, or by
# libtorch_cpu's own RPATH; the linker need not see them.
target_link_options(recals_torch INTERFACE "LINKER:--allow-shlib-undefined")

add_library(recals_torch_python INTERFACE IMPORTED)
target_link_libraries(recals_torch_python INTERFACE recals_torch recals_libtorch_python Python::Module)
