#pragma once
#include <functional>
#include <vector>

#include "controller/schedule/dispatcher.h"

namespace troupe::schedule {

/// One message of mailbox entries to one actor.
struct OutboxMessage {
  ActorId actor = 0;
  wire::RunTasks tasks;
};

/// Makes messages of issued entries, in the order to send them in. What an actor gets keeps the
/// total order: entries are put together only where nothing of another epoch stands between them.
std::vector<OutboxMessage> outbox_messages(const std::vector<Issue>& issued,
                                           const std::function<std::uint64_t(JobId)>& epoch_of);

}  // namespace troupe::schedule
