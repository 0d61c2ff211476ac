# The build of scripts/gpu-check: kernels, the models' part that computes on a GPU, the tensor plane with NCCL, their
# tests and benchmarks. No control plane. It needs a LibTorch, nvcc, NCCL, and the header-only libraries that are
# installed or that `scripts/gpu-check --pack` gathered in carry/.
find_package(Threads REQUIRED)
if(EXISTS ${PROJECT_SOURCE_DIR}/carry/include)
  include_directories(SYSTEM ${PROJECT_SOURCE_DIR}/carry/include)
endif()
foreach(header nlohmann/json.hpp doctest/doctest.h boost/asio/io_context.hpp)
  find_path(found_header ${header} HINTS ${PROJECT_SOURCE_DIR}/carry/include NO_CACHE)
  if(NOT found_header)
    message(FATAL_ERROR "${header} is neither installed nor in carry/: run scripts/gpu-check --pack where it is")
  endif()
  unset(found_header)
endforeach()

add_library(nlohmann_json INTERFACE)
add_library(nlohmann_json::nlohmann_json ALIAS nlohmann_json)
add_library(troupe_asio INTERFACE)
target_link_libraries(troupe_asio INTERFACE Threads::Threads)
target_compile_definitions(troupe_asio INTERFACE BOOST_ASIO_NO_DEPRECATED BOOST_ERROR_CODE_HEADER_ONLY)

find_path(SODIUM_INCLUDE_DIR sodium.h HINTS ${PROJECT_SOURCE_DIR}/carry/include)
find_library(SODIUM_LIBRARY NAMES sodium libsodium.so.23 HINTS ${PROJECT_SOURCE_DIR}/carry/lib)
if(NOT SODIUM_INCLUDE_DIR OR NOT SODIUM_LIBRARY)
  message(FATAL_ERROR "libsodium is neither installed nor in carry/: run scripts/gpu-check --pack where it is")
endif()
add_library(troupe_sodium INTERFACE)
target_link_libraries(troupe_sodium INTERFACE ${SODIUM_LIBRARY})
target_include_directories(troupe_sodium SYSTEM INTERFACE ${SODIUM_INCLUDE_DIR})

include(TroupeTorch)
include(TroupeCuda)
include(TroupeTargets)
if(NOT TROUPE_HAVE_CUDA)
  message(FATAL_ERROR "TROUPE_GPU_CHECK: no nvcc")
endif()

add_subdirectory(models/spec)
add_subdirectory(kernels)
add_subdirectory(transport/tensor)
if(NOT TARGET troupe_nccl)
  message(FATAL_ERROR "TROUPE_GPU_CHECK: nccl.h, libnccl or LibTorch's libc10_cuda.so is missing")
endif()

# Without text and pictures, whose libraries a machine with nothing but LibTorch does not have.
file(GLOB gpu_model_sources CONFIGURE_DEPENDS models/*.cpp models/dit/*.cpp models/vae/*.cpp models/samplers/*.cpp)
troupe_library(models TORCH SOURCES ${gpu_model_sources} DEPS troupe::spec troupe::kernels
  PRIVATE_DEPS nlohmann_json::nlohmann_json)

enable_testing()
add_subdirectory(tests/gpu)
