#include "kernels/graph_cache.h"

#include <dlfcn.h>

#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/plugin_library.h"

namespace troupe::kernels {

namespace {

struct Library {
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
    found.pool = reinterpret_cast<decltype(found.pool)>(dlsym(handle, "troupe_graph_pool"));
    found.make = reinterpret_cast<decltype(found.make)>(dlsym(handle, "troupe_graph_make"));
    if (!version || version() != kGraphLibraryVersion || !found.pool || !found.make)
      found.why = "libtroupe_cuda_graph.so is another build's";
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

std::string GraphCache::why_plain() {
  return library().why;
}

GraphCache::Tensors GraphCache::run(const std::string& key, const Tensors& inputs,
                                    const Body& body) {
  const bool on_gpu = !inputs.empty() && inputs[0].is_cuda();
  if (!on_gpu || !why_plain().empty()) return body(inputs);
  const c10::DeviceGuard device(inputs[0].device());
  Entry& entry = entries_[key_of(key, inputs)];
  const bool first = entry.used == 0;
  entry.used = ++calls_;
  if (first || entry.plain) {
    make_room();
    return body(inputs);
  }
  if (!entry.recorder) record(entry, inputs, body);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    entry.inputs[i].copy_(inputs[i]);
  entry.recorder->replay();
  // The next replay overwrites its outputs, while a transfer may still read these.
  Tensors outputs;
  for (const at::Tensor& output : entry.outputs)
    outputs.push_back(output.clone());
  return outputs;
}

void GraphCache::record(Entry& entry, const Tensors& inputs, const Body& body) {
  if (pool_.first == 0 && pool_.second == 0) library().pool(&pool_);
  for (const at::Tensor& input : inputs)
    entry.inputs.push_back(input.contiguous().clone());
  entry.recorder.reset(library().make(inputs[0].device().index(), pool_));
  try {
    entry.recorder->begin();
    try {
      entry.outputs = body(entry.inputs);
    } catch (...) {
      entry.outputs.clear();
      entry.recorder->cancel();
      throw;
    }
    entry.recorder->end();
  } catch (const std::exception& error) {
    entry.recorder.reset();
    entry.inputs.clear();
    entry.plain = true;
    pool_ = {};  // the allocator may still take the old one for one in use
    throw std::runtime_error(std::string("[graph_cache] cannot be recorded: ") + error.what());
  }
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
