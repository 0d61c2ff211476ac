#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "transport/wire/actor_messages.h"
#include "transport/wire/envelope.h"

namespace troupe::actors {

/// A task, or the posting of a receive, of one epoch.
struct TaskEntry {
  std::uint64_t epoch = 0;
  wire::Command command;
};

/// One entry of the mailbox. `header` is that of the request to answer, where it is one.
struct Letter {
  wire::Header header;
  std::variant<wire::LoadStage, wire::ConnectGroups, wire::BeginJob, wire::EndJob, wire::Unload,
               wire::AbortEpoch, TaskEntry>
      content;
};

/// The actor's single ordered mailbox: filled by the control thread, emptied by the work loop.
/// Thread-safe.
class Mailbox {
 public:
  void put(Letter letter);
  /// The next letter; waits until there is one. Nothing once the mailbox is closed.
  std::optional<Letter> take();
  /// Takes out the job's receives that lie ahead, in their order, up to the next letter that is no
  /// task: so that their tensors may arrive while what stands before them is computed. Never waits.
  std::vector<wire::Command> take_receives(std::uint64_t job);
  /// Ends all waiting; letters still inside are dropped.
  void close();
  std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Letter> letters_;
  bool closed_ = false;
};

}  // namespace troupe::actors
