#include "client/repl/file_words.h"

#include <algorithm>
#include <filesystem>

namespace troupe::repl {
namespace {

namespace fs = std::filesystem;

/// Largest number of words; nobody reads through more.
constexpr std::size_t kMost = 10'000;

}  // namespace

std::vector<std::string> file_words(const std::string& typed, const std::string& ending) {
  const auto slash = typed.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : typed.substr(0, slash + 1);
  const std::string begun = typed.substr(folder.size());
  std::vector<std::string> words;
  std::error_code error;
  fs::directory_iterator at(folder.empty() ? "." : folder, error);
  for (; !error && at != fs::directory_iterator() && words.size() < kMost; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begun) || (name.starts_with('.') && begun.empty())) continue;
    std::error_code unknown;
    if (at->is_directory(unknown))
      words.push_back(folder + name + "/");
    else if (name.ends_with(ending))
      words.push_back(folder + name);
  }
  std::sort(words.begin(), words.end());
  return words;
}

bool is_file(const std::string& type) {
  return type == "DIR" || type.starts_with("FILE") || type.starts_with("F.");
}

std::string ending_of(const std::string& type) {
  if (type == "DIR") return "/";  // no file's
  const auto dot = type.find('.');
  return dot == std::string::npos ? "" : type.substr(dot);
}

}  // namespace troupe::repl
