#pragma once
#include <string_view>
#include <vector>

namespace troupe::web {

/// A file of web/page/, as it was when the program was built.
struct PageFile {
  std::string_view path;  // below that folder
  std::string_view type;  // of its content
  std::string_view hash;  // of its bytes
  std::string_view bytes;
};
const std::vector<PageFile>& page_files();

}  // namespace troupe::web
