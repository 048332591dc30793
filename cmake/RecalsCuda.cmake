# recals_torch_cuda: LibTorch's CUDA libraries and the CUDA runtime, as an imported target; RECALS_CUDA_VERSION, torch's
# ("13.2"). Without them it is not defined, a line says why, and Recals works without its CUDA part. Needs RecalsTorch.
#
# Headers and libcudart come from the CUDA toolkit if there is one of torch's major version, else from the packages that
# PyPI's torch depends on.

option(RECALS_CUDA "Build the CUDA part where torch and CUDA's headers are there" ON)

function(recals_find_cuda)
  if(NOT RECALS_CUDA)
    message(STATUS "Recals: without the CUDA part, as RECALS_CUDA says")
    return()
  endif()
  file(STRINGS "${RECALS_TORCH_DIR}/version.py" line REGEX "^cuda: ")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" version "${line}")
  if(NOT version OR NOT EXISTS "${RECALS_TORCH_DIR}/lib/libtorch_cuda.so")
    message(STATUS "Recals: without the CUDA part, since this torch has no CUDA")
    return()
  endif()
  string(REGEX MATCH "^[0-9]+" major "${version}")

  find_package(CUDAToolkit ${major} QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION_MAJOR EQUAL major AND TARGET CUDA::cudart)
    set(include "${CUDAToolkit_INCLUDE_DIRS}")
    set(cudart CUDA::cudart)
    set(source "the toolkit ${CUDAToolkit_VERSION}")
  else()
    set(packages "${RECALS_TORCH_DIR}/../nvidia")
    find_path(RECALS_CUDA_INCLUDE cuda_runtime_api.h NO_DEFAULT_PATH
              PATHS "${packages}/cu${major}/include" "${packages}/cuda_runtime/include")
    find_library(RECALS_CUDART NAMES "libcudart.so.${major}" NO_DEFAULT_PATH
                 PATHS "${packages}/cu${major}/lib" "${packages}/cuda_runtime/lib")
    mark_as_advanced(RECALS_CUDA_INCLUDE RECALS_CUDART)
    if(NOT RECALS_CUDA_INCLUDE OR NOT RECALS_CUDART)
      message(STATUS "Recals: without the CUDA part: torch has CUDA ${version}, but neither a CUDA toolkit ${major} nor "
                     "the packages of PyPI's torch (nvidia-cuda-runtime) are there")
      return()
    endif()
    set(include "${RECALS_CUDA_INCLUDE}")
    add_library(recals_libcudart SHARED IMPORTED GLOBAL)
    set_target_properties(recals_libcudart PROPERTIES IMPORTED_LOCATION "${RECALS_CUDART}"
                                                      IMPORTED_SONAME "libcudart.so.${major}")
    set(cudart recals_libcudart)
    set(source "the packages of torch")
  endif()
  set(RECALS_CUDA_VERSION "${version}" PARENT_SCOPE)
  message(STATUS "Recals: the CUDA part, for CUDA ${version} with ${source}")

  foreach(lib c10_cuda torch_cuda)
    add_library(recals_lib${lib} SHARED IMPORTED GLOBAL)
    set_target_properties(recals_lib${lib} PROPERTIES IMPORTED_LOCATION "${RECALS_TORCH_DIR}/lib/lib${lib}.so"
                                                      IMPORTED_SONAME "lib${lib}.so")
  endforeach()
  add_library(recals_torch_cuda INTERFACE IMPORTED GLOBAL)
  target_include_directories(recals_torch_cuda SYSTEM INTERFACE ${include})
  target_link_libraries(recals_torch_cuda INTERFACE recals_torch recals_libc10_cuda recals_libtorch_cuda ${cudart})
endfunction()

recals_find_cuda()
