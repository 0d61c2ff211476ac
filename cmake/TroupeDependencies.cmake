# Finds every library once and wraps each as an imported or interface target.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZeroMQ REQUIRED IMPORTED_TARGET libzmq)
# zmq.h needs none of the folders that libzmq.pc lists for libraries of its own, and a second run of CMake 3.25 hands them
# on as other flags than the first one did: everything would be compiled again.
set_target_properties(PkgConfig::ZeroMQ PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${ZeroMQ_INCLUDEDIR}" INTERFACE_COMPILE_OPTIONS "")
find_package(Boost 1.74 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_path(CEREAL_INCLUDE_DIR cereal/cereal.hpp REQUIRED)
find_path(CPPZMQ_INCLUDE_DIR zmq.hpp REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_path(FMT_INCLUDE_DIR fmt/format.h REQUIRED)

add_library(troupe_zmq INTERFACE)
target_link_libraries(troupe_zmq INTERFACE PkgConfig::ZeroMQ Threads::Threads)
target_include_directories(troupe_zmq SYSTEM INTERFACE $<BUILD_INTERFACE:${CPPZMQ_INCLUDE_DIR}>)

# Asio's functions are compiled once; its headers declare them.
add_library(troupe_asio STATIC ${PROJECT_SOURCE_DIR}/cmake/asio.cpp)
set_target_properties(troupe_asio PROPERTIES UNITY_BUILD OFF)
target_link_libraries(troupe_asio PUBLIC $<BUILD_INTERFACE:Boost::headers> Threads::Threads PRIVATE troupe_flags)
# For everything, so that all may share a precompiled header.
target_compile_definitions(troupe_flags INTERFACE
  $<BUILD_INTERFACE:BOOST_ASIO_NO_DEPRECATED> $<BUILD_INTERFACE:BOOST_ERROR_CODE_HEADER_ONLY> $<BUILD_INTERFACE:BOOST_ALL_NO_LIB>
  $<BUILD_INTERFACE:BOOST_ASIO_SEPARATE_COMPILATION>)

pkg_check_modules(Sodium REQUIRED IMPORTED_TARGET libsodium)
add_library(troupe_sodium INTERFACE)
target_link_libraries(troupe_sodium INTERFACE PkgConfig::Sodium)

find_package(CLI11 REQUIRED)
find_package(PNG REQUIRED)
find_package(SQLite3 REQUIRED)
# Of the HTTP gateway, and of clips.
find_package(OpenSSL REQUIRED)
find_package(JPEG REQUIRED)
pkg_check_modules(WebP REQUIRED IMPORTED_TARGET libwebp libwebpdemux)
pkg_check_modules(Vpx REQUIRED IMPORTED_TARGET vpx)
pkg_check_modules(Matroska REQUIRED IMPORTED_TARGET libmatroska libebml)
pkg_check_modules(OpenH264 REQUIRED IMPORTED_TARGET openh264)

# Of tokenizers.
include(TroupeSentencePiece)
pkg_check_modules(Pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(Utf8proc REQUIRED IMPORTED_TARGET libutf8proc)

if(NOT TROUPE_CLIENT_ONLY)
  include(TroupeTorch)
  include(TroupeCuda)
endif()
