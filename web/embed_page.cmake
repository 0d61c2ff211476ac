# cmake -D FOLDER=web/page -D OUTPUT=page_files.cpp -P embed_page.cmake: writes every file of FOLDER into one source file.
file(GLOB_RECURSE files RELATIVE ${FOLDER} ${FOLDER}/*)
set(types html text/html js text/javascript mjs text/javascript css text/css svg image/svg+xml png image/png ico image/x-icon webp image/webp json application/json
  woff2 font/woff2 webmanifest application/manifest+json)
set(arrays "")
set(rows "")
set(number 0)
foreach(file IN LISTS files)
  get_filename_component(suffix ${file} LAST_EXT)
  string(REPLACE "." "" suffix "${suffix}")
  if(suffix STREQUAL "md")
    continue()
  endif()
  list(FIND types "${suffix}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${FOLDER}/${file}: embed_page.cmake knows no content type for .${suffix}")
  endif()
  math(EXPR at "${at} + 1")
  list(GET types ${at} type)
  if(type MATCHES "^text/")
    string(APPEND type "; charset=utf-8")
  endif()
  file(READ ${FOLDER}/${file} bytes HEX)
  file(SHA256 ${FOLDER}/${file} hash)
  string(LENGTH "${bytes}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND rows "      {\"${file}\", \"${type}\", \"${hash}\",\n       {reinterpret_cast<const char*>(kFile${number}), ${length}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"web/page_files.h\"\n
namespace troupe::web {
namespace {
${arrays}}  // namespace
const std::vector<PageFile>& page_files() {
  static const std::vector<PageFile> kFiles = {
${rows}  };
  return kFiles;
}
}  // namespace troupe::web\n")
