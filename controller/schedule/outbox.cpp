#include "controller/schedule/outbox.h"

#include <unordered_map>

namespace troupe::schedule {

std::vector<OutboxMessage> outbox_messages(const std::vector<Issue>& issued,
                                           const std::function<std::uint64_t(JobId)>& epoch_of) {
  std::vector<OutboxMessage> messages;
  std::unordered_map<ActorId, std::size_t> last;
  last.reserve(issued.size());
  JobId job = 0;
  std::uint64_t epoch = 0;
  for (const auto& issue : issued) {
    // Members of one task follow one another.
    if (&issue == &issued.front() || issue.command.job != job) {
      job = issue.command.job;
      epoch = epoch_of(job);
    }
    const auto [open, fresh] = last.try_emplace(issue.actor, messages.size());
    if (fresh || messages[open->second].tasks.epoch != epoch) {
      open->second = messages.size();
      messages.push_back({issue.actor, {.epoch = epoch, .commands = {}}});
    }
    messages[open->second].tasks.commands.push_back(issue.command);
  }
  return messages;
}

}  // namespace troupe::schedule
