#include "actors/stage/prompt_cache.h"

#include <ATen/ATen.h>

namespace troupe::actors {
namespace {

/// Returns a copy of a tensor in memory of its own: a view would keep the whole memory that it
/// views.
at::Tensor copied_to_host(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

}  // namespace

std::uint64_t EncodedPrompt::bytes() const {
  std::uint64_t bytes = cut.size();
  for (const auto* tensor : {&states, &pooled})
    if (tensor->defined()) bytes += tensor->nbytes();
  return bytes;
}

const EncodedPrompt* PromptCache::find(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  uses_.splice(uses_.begin(), uses_, found->second.use);
  return &found->second.prompt;
}

void PromptCache::keep(const Key& key, const EncodedPrompt& prompt) {
  // The text is here twice, once for its order of use.
  const auto bytes = prompt.bytes() + 2 * (sizeof(Key) + key.text.size()) + sizeof(Entry);
  if (bytes > most_bytes_) return;
  if (const auto old = entries_.find(key); old != entries_.end()) drop(old);
  while (bytes_ + bytes > most_bytes_)
    drop(entries_.find(uses_.back()));
  uses_.push_front(key);
  entries_[key] = {
      {copied_to_host(prompt.states), copied_to_host(prompt.pooled), prompt.length, prompt.cut},
      bytes,
      uses_.begin()};
  bytes_ += bytes;
}

void PromptCache::drop(std::map<Key, Entry>::iterator entry) {
  bytes_ -= entry->second.bytes;
  uses_.erase(entry->second.use);
  entries_.erase(entry);
}

}  // namespace troupe::actors
