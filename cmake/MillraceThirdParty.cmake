# The libraries that Millrace stands on. Sets MILLRACE_HAVE_TORCH; the target millrace_torch carries
# libtorch to whoever links it.

find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(CLI11 REQUIRED)
# toml++ is used header-only, by the one source that defines TOML_HEADER_ONLY=1: its CMake target
# would force the shared library on everybody.
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
mark_as_advanced(TOMLPLUSPLUS_INCLUDE_DIR)

set(MILLRACE_HAVE_TORCH OFF)
if(MILLRACE_TORCH STREQUAL "AUTO")
  find_package(Torch QUIET)
elseif(MILLRACE_TORCH)
  find_package(Torch REQUIRED)
endif()
if(MILLRACE_TORCH AND Torch_FOUND)
  set(MILLRACE_HAVE_TORCH ON)
  add_library(millrace_torch INTERFACE)
  target_include_directories(millrace_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  # Without -fopenmp in the including source, at::parallel_for compiles to a serial loop, silently.
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_link_libraries(millrace_torch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
  # What the dataset image-folder reads.
  find_package(PNG REQUIRED)
  find_package(JPEG REQUIRED)
  # Engines of comm that need more than libtorch; their folders are built when it is there.
  find_path(GLOO_INCLUDE_DIR gloo/context.h)
  find_library(GLOO_LIBRARY gloo)
  if(EXISTS "${PROJECT_SOURCE_DIR}/millrace/comm/mpi")
    find_package(MPI QUIET COMPONENTS CXX)
  endif()
  mark_as_advanced(GLOO_INCLUDE_DIR GLOO_LIBRARY)
endif()
message(STATUS "Millrace: half that needs libtorch: ${MILLRACE_HAVE_TORCH}")
