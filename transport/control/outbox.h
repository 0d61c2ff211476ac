#pragma once
#include <cstddef>
#include <deque>
#include <zmq.hpp>

namespace troupe::control {

/// Frames that wait for room in a full pipe, bounded in number and bytes.
class Outbox {
 public:
  Outbox(std::size_t max_messages, std::size_t max_bytes)
      : max_messages_(max_messages), max_bytes_(max_bytes) {}

  bool empty() const { return frames_.empty(); }
  std::size_t bytes() const { return bytes_; }
  /// Queues a frame. False if the outbox is full.
  bool push(zmq::message_t&& frame) {
    if (frames_.size() >= max_messages_ || bytes_ + frame.size() > max_bytes_) return false;
    bytes_ += frame.size();
    frames_.push_back(std::move(frame));
    return true;
  }
  zmq::message_t& front() { return frames_.front(); }
  void pop(std::size_t bytes) {
    bytes_ -= bytes;
    frames_.pop_front();
  }
  void clear() {
    frames_.clear();
    bytes_ = 0;
  }

 private:
  std::size_t max_messages_;
  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::deque<zmq::message_t> frames_;
};

}  // namespace troupe::control
