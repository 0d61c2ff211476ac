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

std::vector<wire::Command> Mailbox::take_receives(std::uint64_t job) {
  std::vector<wire::Command> receives;
  std::lock_guard lock(mutex_);
  for (auto letter = letters_.begin(); letter != letters_.end();) {
    const auto* entry = std::get_if<TaskEntry>(&letter->content);
    if (!entry) break;
    if (!entry->command.receive || entry->command.job != job) {
      ++letter;
      continue;
    }
    receives.push_back(entry->command);
    letter = letters_.erase(letter);
  }
  return receives;
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
