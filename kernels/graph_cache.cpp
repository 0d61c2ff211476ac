#include "kernels/graph_cache.h"

#include <dlfcn.h>

#include <sstream>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/cuda_library.h"

namespace troupe::kernels {

namespace {

struct Library {
  c10::DeviceType type = c10::DeviceType::CUDA;
  decltype(&troupe_graph_pool) pool = nullptr;
  decltype(&troupe_graph_make) make = nullptr;
  std::string why;
};

const Library& library() {
  static const Library opened = [] {
    Library found;
    void* handle = open_plugin("libtroupe_cuda_graph.so", "TROUPE_CUDA_GRAPH", &found.why);
    if (!handle) return found;
    const auto version =
        reinterpret_cast<decltype(&troupe_graph_version)>(dlsym(handle, "troupe_graph_version"));
    const auto type = reinterpret_cast<decltype(&troupe_graph_device_type)>(
        dlsym(handle, "troupe_graph_device_type"));
    found.pool = reinterpret_cast<decltype(found.pool)>(dlsym(handle, "troupe_graph_pool"));
    found.make = reinterpret_cast<decltype(found.make)>(dlsym(handle, "troupe_graph_make"));
    if (!version || version() != kGraphLibraryVersion || !type || !found.pool || !found.make) {
      found.why = "libtroupe_cuda_graph.so is another build's";
    } else {
      found.type = static_cast<c10::DeviceType>(type());
    }
    return found;
  }();
  return opened;
}

std::string key_of(const std::string& key, const GraphCache::Tensors& inputs) {
  std::ostringstream text;
  text << key;
  for (const at::Tensor& input : inputs)
    text << '|' << input.sizes() << c10::toString(input.scalar_type());
  return text.str();
}

}  // namespace

std::string GraphCache::why_plain(at::Device device) {
  if (!library().why.empty() || library().type == device.type()) return library().why;
  return "there are none on " + c10::DeviceTypeName(device.type(), true);
}

GraphCache::Made GraphCache::run(const std::string& key, const Tensors& inputs, const Body& body) {
  if (inputs.empty() || !why_plain(inputs[0].device()).empty()) return body(inputs);
  const c10::DeviceGuard device(inputs[0].device());
  Entry& entry = entries_[key_of(key, inputs)];
  const bool first = entry.used == 0;
  entry.used = ++calls_;
  if (first || entry.plain) {
    make_room();
    return body(inputs);
  }
  if (!entry.recorder && !record(entry, inputs, body)) return body(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    entry.inputs[i].copy_(inputs[i]);
  entry.recorder->replay();
  ++counts_.replayed;
  // The next replay overwrites its tensors, while a transfer may still read these.
  Made made{{}, entry.made.host};
  for (const at::Tensor& tensor : entry.made.tensors)
    made.tensors.push_back(tensor.clone());
  return made;
}

bool GraphCache::record(Entry& entry, const Tensors& inputs, const Body& body) {
  if (pool_.first == 0 && pool_.second == 0) library().pool(&pool_);
  for (const at::Tensor& input : inputs)
    entry.inputs.push_back(input.contiguous().clone());
  entry.recorder.reset(library().make(inputs[0].device().index(), pool_));
  try {
    entry.recorder->begin();
    try {
      entry.made = body(entry.inputs);
    } catch (...) {
      entry.made = {};
      entry.recorder->cancel();
      throw;
    }
    entry.recorder->end();
  } catch (const std::exception& error) {
    entry.recorder.reset();
    entry.made = {};
    entry.inputs.clear();
    entry.plain = true;
    pool_ = {};  // the allocator may still take the old one for one in use
    const std::string text = error.what();
    failure_ = text.substr(0, text.find('\n'));
    return false;
  }
  ++counts_.recorded;
  return true;
}

void GraphCache::make_room() {
  while (entries_.size() > most_) {
    auto oldest = entries_.begin();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->second.used < oldest->second.used) oldest = entry;
    entries_.erase(oldest);
  }
}

void GraphCache::clear() {
  entries_.clear();
}

std::size_t GraphCache::recordings() const {
  std::size_t count = 0;
  for (const auto& [key, entry] : entries_)
    count += entry.recorder != nullptr;
  return count;
}

}  // namespace troupe::kernels
