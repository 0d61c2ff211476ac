#include "controller/schedule/dispatcher.h"

#include "tests/support/doctest.h"

using namespace troupe;

TEST_CASE("messages keep each actor's total order, whatever epochs its jobs have") {
  const auto entry = [](schedule::ActorId actor, schedule::JobId job, std::uint32_t task) {
    return schedule::Issue{actor, {.job = job, .task = task}};
  };
  // Job 1 has the later epoch, so that sorting by epoch would turn the order round.
  const auto messages =
      schedule::outbox_messages({entry(0, 1, 0), entry(1, 1, 0), entry(0, 1, 1), entry(0, 2, 0),
                                 entry(1, 1, 1), entry(0, 1, 2)},
                                [](schedule::JobId job) { return job == 1 ? 9u : 4u; });
  std::map<schedule::ActorId, std::vector<std::pair<std::uint64_t, std::uint32_t>>> order;
  for (const auto& message : messages) {
    for (const auto& command : message.tasks.commands) {
      CHECK(message.tasks.epoch == (command.job == 1 ? 9u : 4u));
      order[message.actor].emplace_back(command.job, command.task);
    }
  }
  CHECK(order[0] ==
        std::vector<std::pair<std::uint64_t, std::uint32_t>>{{1, 0}, {1, 1}, {2, 0}, {1, 2}});
  CHECK(order[1] == std::vector<std::pair<std::uint64_t, std::uint32_t>>{{1, 0}, {1, 1}});
  CHECK(messages.size() == 4);
}
