#include "controller/schedule/mailings.h"

namespace troupe::schedule {

std::vector<Mailing> mailings_of(const std::vector<Issue>& issued,
                                 const std::function<std::uint64_t(JobId)>& epoch_of) {
  std::vector<Mailing> mailings;
  std::map<ActorId, std::size_t> last;
  for (const auto& issue : issued) {
    const auto epoch = epoch_of(issue.command.job);
    const auto open = last.find(issue.actor);
    if (open == last.end() || mailings[open->second].tasks.epoch != epoch) {
      last[issue.actor] = mailings.size();
      mailings.push_back({issue.actor, {.epoch = epoch, .commands = {}}});
    }
    mailings[last[issue.actor]].tasks.commands.push_back(issue.command);
  }
  return mailings;
}

}  // namespace troupe::schedule
