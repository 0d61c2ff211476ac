#include "actors/mailbox.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

Letter task(std::uint64_t job, std::uint32_t number, bool receive) {
  wire::Command command;
  command.job = job;
  command.task = number;
  command.receive = receive;
  return {{}, TaskEntry{1, command}};
}

std::uint32_t number_of(const Letter& letter) {
  return std::get<TaskEntry>(letter.content).command.task;
}

}  // namespace

TEST_CASE("receives of a job go ahead of its tasks, not of what is no task") {
  Mailbox mailbox;
  mailbox.put(task(7, 0, false));
  mailbox.put(task(7, 1, true));
  mailbox.put(task(8, 2, true));
  mailbox.put(task(7, 3, false));
  mailbox.put(task(7, 4, true));
  mailbox.put({{}, wire::EndJob{}});
  mailbox.put(task(7, 5, true));
  const auto receives = mailbox.take_receives(7);
  REQUIRE(receives.size() == 2);
  CHECK(receives[0].task == 1);
  CHECK(receives[1].task == 4);
  CHECK(mailbox.size() == 5);
  for (const std::uint32_t left : {0u, 2u, 3u})
    CHECK(number_of(*mailbox.take()) == left);
  CHECK(std::holds_alternative<wire::EndJob>(mailbox.take()->content));
  CHECK(number_of(*mailbox.take()) == 5);
}

TEST_CASE("a closed mailbox gives nothing") {
  Mailbox mailbox;
  mailbox.put(task(7, 0, true));
  mailbox.close();
  CHECK(mailbox.take_receives(7).empty());
  CHECK(!mailbox.take());
}
