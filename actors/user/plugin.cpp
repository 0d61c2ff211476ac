#include "actors/user/plugin.h"

#include <dlfcn.h>

#include <set>
#include <stdexcept>

#include "base/error_text.h"

namespace troupe::runtime {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw std::runtime_error("[plugin] " + file + ": " + why);
}

}  // namespace

Plugin::Plugin(const std::filesystem::path& file) : file_(file.string()) {
  if (!std::filesystem::is_regular_file(file)) refuse(file_, "there is no such file on this host");
  void* library = dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse(file_, "cannot be loaded: " + first_line(dlerror()));
  using Entry = const plugin::Description* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "troupe_plugin_v1"));
  if (!entry)
    refuse(file_,
           "has no entry point troupe_plugin_v1: is TROUPE_PLUGIN(...) in one of its files?");
  description_ = entry();
  if (!description_) refuse(file_, "its entry point gives nothing");
  if (description_->abi != plugin::kAbi || description_->bytes != sizeof(plugin::Description)) {
    refuse(file_, "was built for plugin version " + std::to_string(description_->abi) +
                      ", this troupe has version " + std::to_string(plugin::kAbi));
  }
  if (std::string(description_->build) != plugin::kBuild) {
    refuse(file_, "was built with another compiler's ABI (" + std::string(description_->build) +
                      "), this troupe with " + plugin::kBuild);
  }
  std::set<std::string> names;
  for (std::uint32_t i = 0; i < description_->class_count; ++i) {
    if (!names.insert(description_->classes[i].name).second)
      refuse(file_, "names the class " + std::string(description_->classes[i].name) + " twice");
  }
}

const plugin::Class* Plugin::find(const std::string& name) const {
  for (std::uint32_t i = 0; i < description_->class_count; ++i) {
    if (name == description_->classes[i].name) return &description_->classes[i];
  }
  return nullptr;
}

wire::ClassList Plugin::describe() const {
  wire::ClassList list;
  for (std::uint32_t i = 0; i < description_->class_count; ++i) {
    const auto& from = description_->classes[i];
    wire::ClassEntry entry{from.name, from.arguments, from.types, from.needs_torch != 0,
                           {},        file_,          {}};
    for (std::uint32_t m = 0; m < from.method_count; ++m) {
      const auto& method = from.methods[m];
      entry.methods.push_back({method.name, method.arguments, method.result});
    }
    list.classes.push_back(std::move(entry));
  }
  return list;
}

}  // namespace troupe::runtime
