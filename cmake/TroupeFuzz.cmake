# The build of scripts/fuzz: what reads bytes from outside, compiled with clang for libFuzzer and the address and
# undefined-behaviour sanitizers. No LibTorch.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "TROUPE_FUZZ: libFuzzer comes with clang; set CMAKE_CXX_COMPILER to clang++")
endif()
set(TROUPE_CLIENT_ONLY ON)
include(TroupeDependencies)
include(TroupeTargets)
find_package(ZLIB REQUIRED)

add_subdirectory(base)
add_subdirectory(models/spec)
add_subdirectory(models/text)
add_subdirectory(transport/wire)
add_subdirectory(transport/json)
add_subdirectory(transport/control)

add_library(troupe_fuzzed STATIC models/image/clip_file.cpp models/image/clip_writer.cpp models/image/clip_text.cpp models/image/frames.cpp models/image/load_picture.cpp models/image/picture_file.cpp models/image/mp4.cpp models/image/png_text.cpp models/image/webm.cpp client/cli/files.cpp
  web/api_error.cpp web/api_keys.cpp web/calls.cpp web/encodings.cpp web/fields.cpp web/http_message.cpp web/pictures.cpp web/webui_call.cpp
  transport/tensor/fd.cpp transport/tensor/rendezvous.cpp)
target_include_directories(troupe_fuzzed PUBLIC client/include)
target_link_libraries(troupe_fuzzed PUBLIC troupe::spec troupe::text troupe::wire troupe::request_json troupe::control troupe_asio
  troupe_sodium ZLIB::ZLIB PNG::PNG JPEG::JPEG PkgConfig::WebP PkgConfig::Vpx PkgConfig::Matroska PkgConfig::OpenH264 CLI11::CLI11 nlohmann_json::nlohmann_json
  PRIVATE troupe_flags)
add_subdirectory(tests/fuzz)
