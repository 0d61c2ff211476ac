#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::runtime {

/// The single ordered mailbox of an actor: filled by the control thread, emptied by the work loop.
/// Thread-safe.
template <class Letter>
class Mailbox {
 public:
  void put(Letter letter) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      letters_.push_back(std::move(letter));
    }
    filled_.notify_one();
  }
  /// Several at once, in their order.
  template <class Letters>
  void put_all(Letters&& letters) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      for (auto& letter : letters)
        letters_.push_back(std::move(letter));
    }
    filled_.notify_one();
  }
  /// To be taken before every other letter: it takes no part in what is done in order. False when
  /// `most` of such wait already.
  bool put_between(Letter letter, std::size_t most) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || between_.size() >= most) return false;
      between_.push_back(std::move(letter));
    }
    filled_.notify_one();
    return true;
  }
  /// The next letter; waits until there is one. Nothing once the mailbox is closed.
  std::optional<Letter> take() {
    std::unique_lock lock(mutex_);
    // The control thread closes the mailbox when the controller is lost, so this wait ends within
    // its heartbeat timeout.
    filled_.wait(lock, [this] { return closed_ || !letters_.empty() || !between_.empty(); });
    if (closed_) return std::nullopt;
    auto& lane = between_.empty() ? letters_ : between_;
    Letter letter = std::move(lane.front());
    lane.pop_front();
    return letter;
  }
  /// False where `take` would wait.
  bool ready() const {
    std::lock_guard lock(mutex_);
    return closed_ || !letters_.empty() || !between_.empty();
  }
  /// Looks at, or takes from, the letters in order, under the lock; must not wait.
  template <class F>
  auto with(F&& look) {
    std::lock_guard lock(mutex_);
    return look(letters_);
  }
  template <class F>
  auto with(F&& look) const {
    std::lock_guard lock(mutex_);
    return look(letters_);
  }
  /// Ends all waiting; letters still inside are dropped.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      letters_.clear();
      between_.clear();
    }
    filled_.notify_all();
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return letters_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Letter> letters_;
  std::deque<Letter> between_;
  bool closed_ = false;
};

}  // namespace troupe::runtime
