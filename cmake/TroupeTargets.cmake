# troupe_library(NAME SOURCES ... [DEPS ...] [TORCH]): a static library troupe_NAME, alias troupe::NAME.
function(troupe_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(troupe_${name} STATIC ${arg_SOURCES})
  add_library(troupe::${name} ALIAS troupe_${name})
  target_link_libraries(troupe_${name} PUBLIC ${arg_DEPS} PRIVATE troupe_flags ${arg_PRIVATE_DEPS})
  target_include_directories(troupe_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  if(arg_TORCH)
    target_link_libraries(troupe_${name} PUBLIC troupe_torch)
    target_precompile_headers(troupe_${name} REUSE_FROM troupe_torch_pch)
  endif()
endfunction()

# troupe_torch_executable(NAME [PCH]): an executable that sees torch through the precompiled header. That header is built
# as position-independent code for libraries (-fPIC), so the executable must be, too, or the compiler ignores the header.
function(troupe_torch_executable name)
  set(pch troupe_torch_pch)
  if(ARGC GREATER 1)
    set(pch ${ARGV1})
  endif()
  target_link_libraries(${name} PRIVATE troupe_torch troupe_flags)
  target_precompile_headers(${name} REUSE_FROM ${pch})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
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

# troupe_test(NAME sources... LIBS libs... [TORCH] [LABELS ...] [TIMEOUT s]): a doctest runner registered with ctest.
function(troupe_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "LIBS;LABELS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS} ${PROJECT_SOURCE_DIR}/tests/support/main.cpp)
  target_link_libraries(${name} PRIVATE ${arg_LIBS} troupe_flags)
  target_compile_definitions(${name} PRIVATE TROUPE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TROUPE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_compile_options(${name} PRIVATE ${troupe_test_options})
  if(arg_TORCH)
    troupe_torch_executable(${name} troupe_torch_test_pch)
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
endfunction()
