#pragma once
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

namespace troupe::testing {

/// An empty folder that goes with everything in it.
struct Scratch {
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder");
    path = name;
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string operator/(const std::string& name) const { return (path / name).string(); }

  std::filesystem::path path;
};

/// What an action throws, "" when it throws nothing.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace troupe::testing
