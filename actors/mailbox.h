#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "actors/user/control_thread.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/envelope.h"

namespace troupe::actors {

/// A task, or the posting of a receive, of one epoch.
struct TaskEntry {
  std::uint64_t epoch = 0;
  wire::Command command;
};

struct Inspection;  // inspect.h

/// One entry of the mailbox. `header` is that of the request to answer, if the entry is a request.
struct Message {
  wire::Header header;
  std::variant<wire::LoadStage, wire::ConnectGroups, wire::BeginJob, wire::EndJob, wire::Unload,
               wire::AbortEpoch, TaskEntry, std::shared_ptr<Inspection>>
      content;
};

/// The stage actor's mailbox: the runtime's, and what stages ask of it. Thread-safe.
class Mailbox : public runtime::Mailbox<Message> {
 public:
  /// Puts a question that is to be taken before every other message. But where jobs are rehearsed,
  /// a question that is computed takes its place behind the others: the device may have to come to
  /// rest for it, and no receive goes past it. Returns false if too many questions wait already.
  bool put_inspection(std::shared_ptr<Inspection> inspection, bool rehearses = false);
  /// Puts a job's end between two messages, since the job's figures need not wait behind the tasks
  /// of others; but behind whatever of that job is still in the mailbox, its beginning or a receive
  /// of a task that was never sent. Called by the thread that puts all other messages.
  void put_end(const wire::Header& header, const wire::EndJob& end);
  /// Tasks that receives may be taken past.
  enum class Past {
    tasks,        // all
    micro_steps,  // these alone: the others may need what a device has to come to rest for, and a
                  // receive that waits there keeps it from that
  };
  /// Takes out the receives that lie ahead, in their order, up to the next message that they may
  /// not be taken past, such as any message that is not a task. So their tensors may arrive while
  /// the tasks before them are computed. The receives of all jobs of the epoch are taken, since the
  /// jobs share the epoch's edges and the order on an edge is one over all jobs. Never waits.
  std::vector<TaskEntry> take_receives(std::uint64_t epoch, Past past = Past::tasks);
  /// Shows the first `most` messages in order; returns how many there are in all.
  std::size_t look(std::size_t most, const std::function<void(const Message&)>& show) const;
};

}  // namespace troupe::actors
