#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::runtime {

/// The single ordered mailbox of an actor: filled by the control thread, emptied by the work loop.
/// Thread-safe.
template <class Message>
class Mailbox {
 public:
  void put(Message message) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      messages_.push_back(std::move(message));
    }
    filled_.notify_one();
  }
  /// Several at once, in their order.
  template <class Messages>
  void put_all(Messages&& messages) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      for (auto& message : messages)
        messages_.push_back(std::move(message));
    }
    filled_.notify_one();
  }
  /// Puts a message that is to be taken before every other one, because it takes no part in what is
  /// done in order. Returns false if `most` such messages wait already.
  bool put_between(Message message, std::size_t most) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || between_.size() >= most) return false;
      between_.push_back(std::move(message));
    }
    filled_.notify_one();
    return true;
  }
  /// Takes the next message; waits until there is one. Returns nothing once the mailbox is closed.
  std::optional<Message> take() {
    std::unique_lock lock(mutex_);
    // The control thread closes the mailbox when the controller is lost, so this wait ends within
    // its heartbeat timeout.
    filled_.wait(lock, [this] { return closed_ || !messages_.empty() || !between_.empty(); });
    if (closed_) return std::nullopt;
    auto& lane = between_.empty() ? messages_ : between_;
    Message message = std::move(lane.front());
    lane.pop_front();
    return message;
  }
  /// Returns false if `take` would wait.
  bool ready() const {
    std::lock_guard lock(mutex_);
    return closed_ || !messages_.empty() || !between_.empty();
  }
  /// Looks at, or takes from, the messages in order, under the lock; must not wait.
  template <class F>
  auto with(F&& look) {
    std::lock_guard lock(mutex_);
    return look(messages_);
  }
  template <class F>
  auto with(F&& look) const {
    std::lock_guard lock(mutex_);
    return look(messages_);
  }
  /// Ends all waiting; messages still inside are dropped.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      messages_.clear();
      between_.clear();
    }
    filled_.notify_all();
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return messages_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Message> messages_;
  std::deque<Message> between_;
  bool closed_ = false;
};

}  // namespace troupe::runtime
