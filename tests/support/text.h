#pragma once
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

namespace troupe::testing {

inline bool has(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

/// A file's bytes; empty when it cannot be read.
inline std::string read_all(const std::filesystem::path& file) {
  std::ostringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  return bytes.str();
}

/// Returns the text of what an action throws, "" when it throws nothing.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace troupe::testing
