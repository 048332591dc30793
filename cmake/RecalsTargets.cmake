# Functions that every folder's CMakeLists.txt uses. What they set, they set on the target only.
#
#   recals_target(NAME)                  warnings, standard, visibility, include root
#   recals_use_torch(NAME)               LibTorch and the shared precompiled header
#   recals_pass(NAME LINK targets...)    a static library of the *.cpp files of the current folder
#   recals_test(NAME LINK targets...)    a GoogleTest program of the *.cpp files of the current folder

find_package(nlohmann_json 3.9 QUIET)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "Recals: nlohmann-json was not found. On Debian:  apt-get install nlohmann-json3-dev")
endif()

option(RECALS_CCACHE "Compile through ccache where it is installed" ON)
if(RECALS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(RECALS_CCACHE_PROGRAM ccache)
  if(RECALS_CCACHE_PROGRAM)
    # What ccache asks for before it caches anything that has to do with a precompiled header.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                    ${RECALS_CCACHE_PROGRAM})
  endif()
endif()

function(recals_target name)
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
                                            "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>")
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(
    ${name}
    PROPERTIES CXX_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON)
  # -fPIC for programs too (CMake would say -fPIE): a precompiled header serves only compilations that agree with it.
  target_compile_options(
    ${name} PRIVATE -fPIC -Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Woverloaded-virtual
                    $<$<BOOL:${RECALS_WERROR}>:-Werror>)
  # Line tables only, which backtraces and profilers need: full debug information of LibTorch's headers costs a third
  # of the compile time and megabytes an object. The Debug configuration has it all.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-g1>)
  if(RECALS_SANITIZE)
    # LibTorch hides the type information of some classes, which the check of virtual calls asks for. Optimised further,
    # the checks take twice as long to compile.
    target_compile_options(${name} PRIVATE -fsanitize=${RECALS_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer -O1)
    target_link_options(${name} PRIVATE -fsanitize=${RECALS_SANITIZE})
  endif()
  if(RECALS_COVERAGE)
    target_compile_options(${name} PRIVATE --coverage -fprofile-update=atomic)
    target_link_options(${name} PRIVATE --coverage)
  endif()
endfunction()

function(recals_use_torch name)
  target_link_libraries(${name} PUBLIC recals_torch)
  target_precompile_headers(${name} REUSE_FROM recals_pch)
  if(RECALS_CCACHE AND RECALS_CCACHE_PROGRAM AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -fpch-preprocess)
  endif()
endfunction()

# The library exists so that the others can reuse its precompiled header. Parsing LibTorch's headers takes most of a
# source file's compile time.
file(WRITE "${PROJECT_BINARY_DIR}/recals_pch.cpp.in" "")
configure_file("${PROJECT_BINARY_DIR}/recals_pch.cpp.in" "${PROJECT_BINARY_DIR}/recals_pch.cpp" COPYONLY)
add_library(recals_pch OBJECT "${PROJECT_BINARY_DIR}/recals_pch.cpp")
recals_target(recals_pch)
target_link_libraries(recals_pch PUBLIC recals_torch)
target_precompile_headers(recals_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/recals_pch.h")

function(recals_pass name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_TORCH" "" "LINK")
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  if(NOT sources)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_LINK})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  set_property(TARGET ${name} PROPERTY POSITION_INDEPENDENT_CODE ON)
  recals_target(${name})
  if(NOT arg_NO_TORCH)
    recals_use_torch(${name})
  endif()
  target_link_libraries(${name} PUBLIC ${arg_LINK})
endfunction()

# Kernel and operator registrations are static objects that nothing refers to, and the linker drops such objects from
# static libraries. Every program or module that contains the passes says this once.
function(recals_keep_registrations name)
  foreach(lib recals_sizes)
    get_target_property(type ${lib} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      set_property(TARGET ${name} APPEND PROPERTY LINK_LIBRARY_OVERRIDE "WHOLE_ARCHIVE,${lib}")
    endif()
  endforeach()
endfunction()

function(recals_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_TORCH" "" "LINK")
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  if(NOT sources)
    message(STATUS "Recals: ${name} has no sources yet")
    return()
  endif()
  add_executable(${name} ${sources})
  recals_target(${name})
  if(NOT arg_NO_TORCH)
    recals_use_torch(${name})
    recals_keep_registrations(${name})
  endif()
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gmock GTest::gtest_main)
  set(label torch)
  if(arg_NO_TORCH)
    set(label any-torch) # the same with every version
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 300 LABELS ${label})
endfunction()
