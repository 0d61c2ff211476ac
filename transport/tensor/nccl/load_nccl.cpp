#include "transport/tensor/nccl/load_nccl.h"

#include <dlfcn.h>

#include <filesystem>

namespace troupe::tensor::nccl {
namespace {

constexpr const char* kFile = "libtroupe_nccl.so";

struct Plugin {
  decltype(&troupe_nccl_why_unavailable) why_unavailable = nullptr;
  decltype(&troupe_nccl_make_device) make_device = nullptr;
  std::string error;
};

/// The library stays loaded: CUDA contexts do not survive its removal.
Plugin load() {
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  Plugin plugin;
  for (const auto& path :
       {folder / kFile, folder / ".." / "lib" / kFile, std::filesystem::path(kFile)}) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* error = ::dlerror();
      if (plugin.error.empty() || std::filesystem::exists(path, ignored))
        plugin.error = error ? error : "cannot be loaded";
      continue;
    }
    plugin.why_unavailable = reinterpret_cast<decltype(plugin.why_unavailable)>(
        ::dlsym(library, "troupe_nccl_why_unavailable"));
    plugin.make_device =
        reinterpret_cast<decltype(plugin.make_device)>(::dlsym(library, "troupe_nccl_make_device"));
    plugin.error = plugin.why_unavailable && plugin.make_device
                       ? ""
                       : std::string(kFile) + " is another build's";
    return plugin;
  }
  return plugin;
}

}  // namespace

std::string why_unavailable() {
  const Plugin plugin = load();
  if (!plugin.error.empty()) return plugin.error;
  const char* why = plugin.why_unavailable();
  return why ? why : "";
}

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  if (const std::string why = why_unavailable(); !why.empty())
    throw std::runtime_error("[tensor.nccl] not available: " + why);
  return std::unique_ptr<Device>(load().make_device(options));
}

}  // namespace troupe::tensor::nccl
