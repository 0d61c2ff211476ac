#include "controller/schedule/batches.h"

namespace troupe::schedule {

std::vector<Batch> in_batches(const std::vector<Issue>& issued,
                              const std::function<std::uint64_t(JobId)>& epoch_of) {
  std::vector<Batch> batches;
  std::map<ActorId, std::size_t> last;
  for (const auto& issue : issued) {
    const auto epoch = epoch_of(issue.command.job);
    const auto open = last.find(issue.actor);
    if (open == last.end() || batches[open->second].tasks.epoch != epoch) {
      last[issue.actor] = batches.size();
      batches.push_back({issue.actor, {.epoch = epoch, .commands = {}}});
    }
    batches[last[issue.actor]].tasks.commands.push_back(issue.command);
  }
  return batches;
}

}  // namespace troupe::schedule
