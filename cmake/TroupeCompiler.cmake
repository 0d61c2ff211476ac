# Flags, sanitizers, ccache: everything that all our own targets share, as the interface target troupe_flags.
find_program(CCACHE ccache)
if(CCACHE)
  # Precompiled headers need these two sloppinesses to be cached at all. CCACHE_DEPEND: what is not in the cache is not
  # preprocessed a second time only to be looked up.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

add_library(troupe_flags INTERFACE)
target_compile_options(troupe_flags INTERFACE
  "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>>"
  "$<BUILD_INTERFACE:$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${CCACHE}>>:-fpch-preprocess>>")
target_include_directories(troupe_flags INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)

# Sources of one target compiled together, in batches: a quarter of the time from cold, since headers and templates are
# read once a batch. After a change the whole batch is compiled again, so whoever edits much may turn it off.
option(TROUPE_UNITY "Compile the sources of a target in batches (quick from cold, slower after a change)" OFF)
set(CMAKE_UNITY_BUILD ${TROUPE_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)

# What waits for people, files and sockets: optimising at -O3 was a third to a half of its compile time. Tests wait for
# what they test, which is optimised.
set(troupe_test_options "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:-O0>")
set(troupe_cold_options "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:-O1>")

if(TROUPE_SANITIZE)
  if(TROUPE_SANITIZE MATCHES "thread" AND TROUPE_SANITIZE MATCHES "address")
    message(FATAL_ERROR "TROUPE_SANITIZE: thread and address exclude each other")
  endif()
  target_compile_options(troupe_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined>)
  target_link_options(troupe_flags INTERFACE -fsanitize=${TROUPE_SANITIZE})
  if(TROUPE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Asio's fences, which the sanitizer does not follow; they stand beside its mutexes, which it does.
    target_compile_options(troupe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()
