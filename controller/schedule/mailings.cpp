#include "controller/schedule/mailings.h"

#include <unordered_map>

namespace troupe::schedule {

std::vector<Mailing> mailings_of(const std::vector<Issue>& issued,
                                 const std::function<std::uint64_t(JobId)>& epoch_of) {
  std::vector<Mailing> mailings;
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
    const auto [open, fresh] = last.try_emplace(issue.actor, mailings.size());
    if (fresh || mailings[open->second].tasks.epoch != epoch) {
      open->second = mailings.size();
      mailings.push_back({issue.actor, {.epoch = epoch, .commands = {}}});
    }
    mailings[open->second].tasks.commands.push_back(issue.command);
  }
  return mailings;
}

}  // namespace troupe::schedule
