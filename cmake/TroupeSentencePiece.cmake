# sentencepiece as troupe_sentencepiece. Not by pkg-config: where the library was linked with the system's protobuf
# (Debian 13), its .pc file asks for protobuf's headers too, which nobody needs.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h REQUIRED)
find_library(SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
add_library(troupe_sentencepiece UNKNOWN IMPORTED)
set_target_properties(troupe_sentencepiece PROPERTIES
  IMPORTED_LOCATION "${SENTENCEPIECE_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${SENTENCEPIECE_INCLUDE_DIR}")
