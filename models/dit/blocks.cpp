#include "models/dit/blocks.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "kernels/cpu_kernels.h"

namespace troupe::models {

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.clone() : tensor.cpu().pin_memory();
}

BlockStream::~BlockStream() {
  if (stream_) {
    try {  // the blocks' memory serves others from here on
      c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
    } catch (const std::exception&) {
      // The next user of the device gets its error.
    }
  }
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

int BlockStream::add(Read read, int64_t bytes) {
  reads_.push_back(std::move(read));
  bytes_.push_back(bytes);
  return static_cast<int>(reads_.size()) - 1;
}

int64_t BlockStream::bytes() const {
  if (bytes_.size() == 1) return bytes_.front();
  int64_t most = 0;
  for (size_t i = 0; i < bytes_.size(); ++i)
    most = std::max(most, bytes_[i] + bytes_[(i + 1) % bytes_.size()]);
  return most;
}

int64_t BlockStream::most_held() const {
  const std::lock_guard lock(mutex_);
  return most_held_;
}

const void* BlockStream::get(int number) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) {
    // Streams of the pool are handed out in turn: never the one that computes.
    if (!device_.is_cpu())
      stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
    thread_ = std::thread([this] { work(); });
  }
  current_ = number;
  next_ = (number + 1) % static_cast<int>(reads_.size());
  std::shared_ptr<c10::Event> used;
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    const auto here = slot++;
    if (wanted(here->first)) continue;
    if (stream_ && !used) {
      // The event comes after everything that the calling thread has issued with its blocks.
      used = std::make_shared<c10::Event>(device_.type());
      used->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    }
    if (!here->second.error) used_.push_back(Used{here->first, std::move(here->second), used});
    slots_.erase(here);
  }
  changed_.notify_all();
  changed_.wait(lock, [&] { return slots_.contains(number); });
  auto& slot = slots_.at(number);
  if (slot.error) {
    const auto error = slot.error;
    slots_.erase(number);
    current_ = next_ = -1;
    std::rethrow_exception(error);
  }
  if (slot.read) slot.read->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return slot.block.get();
}

std::optional<int> BlockStream::missing() const {
  for (const int number : {current_, next_})
    if (number >= 0 && !slots_.contains(number)) return number;
  return std::nullopt;
}

void BlockStream::forget(std::unique_lock<std::mutex>& lock) {
  while (!used_.empty()) {
    std::optional<Used> old(std::move(used_.back()));
    used_.pop_back();
    const auto bytes = bytes_[static_cast<size_t>(old->number)];
    lock.unlock();
    // The memory's next use is issued on this stream, so it comes after.
    if (old->used) old->used->block(*stream_);
    old.reset();
    lock.lock();
    held_ -= bytes;
  }
}

BlockStream::Slot BlockStream::read(int number) {
  Slot slot;
  try {
    slot.block = reads_[static_cast<size_t>(number)]();
    if (stream_) {
      slot.read.emplace(device_.type());
      slot.read->record(*stream_);
    }
  } catch (...) {
    slot.block.reset();
    slot.error = std::current_exception();
  }
  return slot;
}

void BlockStream::work() {
  const c10::InferenceMode inference;
  kernels::use_one_thread();  // the others compute
  std::optional<c10::StreamGuard> on_stream;
  if (stream_) on_stream.emplace(*stream_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopped_ || !used_.empty() || missing(); });
    if (stopped_) break;
    forget(lock);
    const auto number = missing();
    if (!number) continue;
    const auto bytes = bytes_[static_cast<size_t>(*number)];
    held_ += bytes;
    most_held_ = std::max(most_held_, held_);
    lock.unlock();
    auto slot = read(*number);
    lock.lock();
    if (slot.error) held_ -= bytes;
    if (wanted(*number)) {
      slots_[*number] = std::move(slot);
    } else if (!slot.error) {
      used_.push_back(Used{*number, std::move(slot), nullptr});
    }
    changed_.notify_all();
  }
  slots_.clear();
  used_.clear();
}

}  // namespace troupe::models
