#include "actors/mailbox.h"

namespace troupe::actors {

void Mailbox::put(Letter letter) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    letters_.push_back(std::move(letter));
  }
  filled_.notify_one();
}

std::optional<Letter> Mailbox::take() {
  std::unique_lock lock(mutex_);
  // The control thread closes the mailbox when the controller is lost, so this wait ends within its
  // heartbeat timeout.
  filled_.wait(lock, [this] { return closed_ || !letters_.empty(); });
  if (closed_) return std::nullopt;
  Letter letter = std::move(letters_.front());
  letters_.pop_front();
  return letter;
}

void Mailbox::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    letters_.clear();
  }
  filled_.notify_all();
}

std::size_t Mailbox::size() const {
  std::lock_guard lock(mutex_);
  return letters_.size();
}

}  // namespace troupe::actors
