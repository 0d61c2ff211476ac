# Three precompiled headers for what sees no torch: one at -O3, one at -O1 for what is COLD, one at -O0 for tests
# (LibTorch's are in TroupeTorch.cmake).
if(NOT TROUPE_GPU_CHECK AND NOT TROUPE_FUZZ)
  foreach(pch troupe_plain_pch troupe_plain_cold_pch troupe_plain_test_pch)
    add_library(${pch} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/empty.cpp)
    set_target_properties(${pch} PROPERTIES UNITY_BUILD OFF)
    target_link_libraries(${pch} PUBLIC troupe_flags troupe_asio nlohmann_json::nlohmann_json)
    target_precompile_headers(${pch} PRIVATE <algorithm> <chrono> <filesystem> <fstream> <functional> <iostream> <map>
      <memory> <mutex> <optional> <set> <stdexcept> <string> <thread> <vector> <boost/asio/io_context.hpp>
      <boost/asio/posix/stream_descriptor.hpp> <boost/asio/post.hpp> <boost/asio/steady_timer.hpp>
      <cereal/cereal.hpp> <nlohmann/json.hpp>)
  endforeach()
  target_compile_options(troupe_plain_cold_pch PRIVATE ${troupe_cold_options})
  target_compile_options(troupe_plain_test_pch PRIVATE ${troupe_test_options})
endif()

# troupe_batch_by_folder(TARGET): batches (TROUPE_UNITY) of one folder's sources each; their objects are called
# Unity/unity_FOLDER_N_cxx.cxx.o.
function(troupe_batch_by_folder target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    if(NOT DEFINED count_${folder})
      set(count_${folder} 0)
    endif()
    math(EXPR batch "${count_${folder}} / ${CMAKE_UNITY_BUILD_BATCH_SIZE}")
    math(EXPR count_${folder} "${count_${folder}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
  endforeach()
endfunction()

# troupe_library(NAME SOURCES ... [DEPS ...] [TORCH | OWN_PCH | PURE] [COLD]): a static library troupe_NAME, alias
# troupe::NAME. COLD: it waits for people, files and sockets, so that it is compiled at -O1. PURE: no precompiled header
# brings in what its files do not include (tests/rooms/pure_test.py).
function(troupe_library name)
  cmake_parse_arguments(arg "TORCH;OWN_PCH;PURE;COLD" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(troupe_${name} STATIC ${arg_SOURCES})
  add_library(troupe::${name} ALIAS troupe_${name})
  target_link_libraries(troupe_${name} PUBLIC ${arg_DEPS} PRIVATE troupe_flags ${arg_PRIVATE_DEPS})
  target_include_directories(troupe_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  set(cold)
  if(arg_COLD)
    set(cold cold_)
    target_compile_options(troupe_${name} PRIVATE ${troupe_cold_options})
  endif()
  if(arg_TORCH)
    target_link_libraries(troupe_${name} PUBLIC troupe_torch)
    target_precompile_headers(troupe_${name} REUSE_FROM troupe_torch_pch)
  elseif(TARGET troupe_plain_pch AND NOT arg_OWN_PCH AND NOT arg_PURE)
    target_precompile_headers(troupe_${name} REUSE_FROM troupe_plain_${cold}pch)
    target_link_libraries(troupe_${name} PRIVATE troupe_asio)
  endif()
endfunction()

# troupe_reuse_pch(NAME PCH): an executable that takes a precompiled header. It is built as position-independent code for
# libraries (-fPIC), so the executable must be, too, or the compiler ignores the header.
function(troupe_reuse_pch name pch)
  target_precompile_headers(${name} REUSE_FROM ${pch})
  if(pch MATCHES plain)
    target_link_libraries(${name} PRIVATE troupe_asio)
  endif()
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
endfunction()

# troupe_torch_executable(NAME [PCH]): an executable that sees torch through the precompiled header.
function(troupe_torch_executable name)
  set(pch troupe_torch_pch)
  if(ARGC GREATER 1)
    set(pch ${ARGV1})
  endif()
  target_link_libraries(${name} PRIVATE troupe_torch troupe_flags)
  troupe_reuse_pch(${name} ${pch})
endfunction()

# troupe::model_api and troupe::network_api: the headers that a model plugin's two halves are compiled with, as an
# installed Troupe offers them (TroupeConfig.cmake.in).
add_library(troupe_model_api INTERFACE)
add_library(troupe::model_api ALIAS troupe_model_api)
target_include_directories(troupe_model_api INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_features(troupe_model_api INTERFACE cxx_std_20)
target_link_libraries(troupe_model_api INTERFACE nlohmann_json::nlohmann_json troupe_flags)
if(TROUPE_TORCH_INCLUDE_DIR)
  add_library(troupe_network_api INTERFACE)
  add_library(troupe::network_api ALIAS troupe_network_api)
  target_include_directories(troupe_network_api SYSTEM INTERFACE ${TROUPE_TORCH_INCLUDE_DIR})
  target_link_libraries(troupe_network_api INTERFACE troupe_model_api)
endif()

# troupe_serves_plugins(NAME): an executable whose functions for models (spec, models, kernels) model plugins call. Inline
# variables are exported with their guards (_ZGV), or a plugin would make them a second time.
function(troupe_serves_plugins name)
  set(symbols ${PROJECT_SOURCE_DIR}/cmake/plugin_symbols.list)
  target_link_options(${name} PRIVATE -Wl,--dynamic-list=${symbols})
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${symbols})
endfunction()

# What a test runs with under a sanitizer; the suppressions are for libraries that are not ours.
set(troupe_sanitizer_environment "")
if(TROUPE_SANITIZE MATCHES "thread")
  set(troupe_sanitizer_environment
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp:halt_on_error=1:second_deadlock_stack=1")
elseif(TROUPE_SANITIZE)
  set(troupe_sanitizer_environment
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
    "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1")
endif()

# troupe_test_library(NAME sources... [LIBS libs...] [WARM]): what several tests share, compiled once, as they are.
function(troupe_test_library name)
  cmake_parse_arguments(arg "WARM" "" "LIBS" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${arg_LIBS} PRIVATE troupe_flags)
  target_compile_definitions(${name} PRIVATE TROUPE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TROUPE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set(kind test)
  if(arg_WARM)
    set(kind cold)
  endif()
  target_compile_options(${name} PRIVATE ${troupe_${kind}_options})
  if(TARGET troupe_plain_${kind}_pch)
    target_precompile_headers(${name} REUSE_FROM troupe_plain_${kind}_pch)
    target_link_libraries(${name} PRIVATE troupe_asio)
  endif()
endfunction()

# troupe_test(NAME sources... LIBS libs... [TORCH] [WARM] [ALONE] [LABELS ...] [TIMEOUT s] [COST s]): a doctest runner
# registered with ctest. WARM: its own code computes much, so that it is compiled at -O1 (not with TORCH). ALONE: it
# measures what others would change; so do those on a GPU. COST: seconds that a long one takes, so that it begins early.
function(troupe_test name)
  cmake_parse_arguments(arg "TORCH;WARM;ALONE" "TIMEOUT;COST" "LIBS;LABELS" ${ARGN})
  if(NOT TARGET troupe_test_main)
    # WARM: it brings doctest's copies of the standard library's functions, which the linker takes for the whole program.
    troupe_test_library(troupe_test_main ${PROJECT_SOURCE_DIR}/tests/support/main.cpp WARM)
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE troupe_test_main ${arg_LIBS} troupe_flags)
  target_compile_definitions(${name} PRIVATE TROUPE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TROUPE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set(kind test)
  if(arg_WARM)
    set(kind cold)
  endif()
  target_compile_options(${name} PRIVATE ${troupe_${kind}_options})
  if(arg_TORCH)
    troupe_torch_executable(${name} troupe_torch_test_pch)
  elseif(TARGET troupe_plain_${kind}_pch)
    troupe_reuse_pch(${name} troupe_plain_${kind}_pch)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1200)
  endif()
  if(TROUPE_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
    ENVIRONMENT "${troupe_sanitizer_environment}")
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
  if(arg_ALONE OR "gpu" IN_LIST arg_LABELS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
