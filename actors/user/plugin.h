#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "transport/wire/user_messages.h"
#include "troupe/actor_plugin.h"

namespace troupe::runtime {

/// A user's shared library, open in this process for good.
class Plugin {
 public:
  /// Throws std::runtime_error, one line: no such file, cannot be loaded (why), no entry point
  /// (TROUPE_PLUGIN is missing), another ABI or compiler, a class twice.
  explicit Plugin(const std::filesystem::path& file);

  const std::string& file() const { return file_; }
  /// Returns null if the plugin has no class of that name.
  const plugin::Class* find(const std::string& name) const;
  wire::ClassList describe() const;

 private:
  std::string file_;
  const plugin::Description* description_ = nullptr;
};

}  // namespace troupe::runtime
