#include "actors/mailbox.h"

#include "actors/inspect.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

Message task(std::uint64_t job, std::uint32_t number, bool receive, std::uint64_t epoch = 1) {
  wire::Command command;
  command.job = job;
  command.task = number;
  command.receive = receive;
  return {{}, TaskEntry{epoch, command}};
}

std::uint32_t number_of(const Message& message) {
  return std::get<TaskEntry>(message.content).command.task;
}

}  // namespace

TEST_CASE("receives of all jobs of an epoch go ahead, in their order, not past what is no task") {
  Mailbox mailbox;
  mailbox.put(task(7, 0, false));
  mailbox.put(task(7, 1, true));
  mailbox.put(task(8, 2, true));
  mailbox.put(task(9, 3, true, 2));
  mailbox.put(task(7, 4, false));
  mailbox.put(task(7, 5, true));
  mailbox.put(task(8, 6, true));
  mailbox.put({{}, wire::EndJob{}});
  mailbox.put(task(7, 7, true));
  const auto receives = mailbox.take_receives(1);
  std::vector<std::pair<std::uint64_t, std::uint32_t>> taken;
  for (const auto& entry : receives) {
    CHECK(entry.epoch == 1);
    CHECK(entry.command.receive);
    taken.emplace_back(entry.command.job, entry.command.task);
  }
  CHECK(taken ==
        std::vector<std::pair<std::uint64_t, std::uint32_t>>{{7, 1}, {8, 2}, {7, 5}, {8, 6}});
  CHECK(mailbox.size() == 5);
  CHECK(mailbox.take_receives(1).empty());
  for (const std::uint32_t left : {0u, 3u, 4u})
    CHECK(number_of(*mailbox.take()) == left);
  CHECK(std::holds_alternative<wire::EndJob>(mailbox.take()->content));
  CHECK(number_of(*mailbox.take()) == 7);
}

TEST_CASE("where other tasks need a device at rest, receives go past micro-steps alone") {
  const auto of_kind = [](std::uint32_t number, wire::TaskKind kind) {
    auto message = task(7, number, false);
    std::get<TaskEntry>(message.content).command.kind = kind;
    return message;
  };
  for (const auto other : {wire::TaskKind::encode_text, wire::TaskKind::decode}) {
    Mailbox mailbox;
    mailbox.put(of_kind(0, wire::TaskKind::micro_step));
    mailbox.put(task(7, 1, true));
    mailbox.put(of_kind(2, other));
    mailbox.put(task(8, 3, true));
    const auto taken = mailbox.take_receives(1, Mailbox::Past::micro_steps);
    REQUIRE(taken.size() == 1);
    CHECK(taken[0].command.task == 1);
    CHECK(number_of(*mailbox.take()) == 0);
    CHECK(mailbox.take_receives(1, Mailbox::Past::micro_steps).empty());
    CHECK(mailbox.take_receives(1).size() == 1);
  }
}

TEST_CASE("where jobs are rehearsed a question that is computed stands in the order") {
  const auto asks = [](Inspection::Question question) {
    auto inspection = std::make_shared<Inspection>();
    inspection->question = std::move(question);
    return inspection;
  };
  const auto is_render = [](const Message& message) {
    const auto* inspection = std::get_if<std::shared_ptr<Inspection>>(&message.content);
    return inspection && std::holds_alternative<wire::RenderLatents>((*inspection)->question);
  };
  for (const bool rehearses : {false, true}) {
    CAPTURE(rehearses);
    Mailbox mailbox;
    mailbox.put(task(7, 0, true));
    CHECK(mailbox.put_inspection(asks(wire::RenderLatents{}), rehearses));
    CHECK(mailbox.put_inspection(asks(wire::GetTensors{}), rehearses));
    mailbox.put(task(7, 1, true));
    if (!rehearses) CHECK(is_render(*mailbox.take()));
    const auto looks = mailbox.take();
    CHECK(std::holds_alternative<std::shared_ptr<Inspection>>(looks->content));
    CHECK_FALSE(is_render(*looks));
    // Receives that were put behind it stay there.
    CHECK(mailbox.take_receives(1, Mailbox::Past::micro_steps).size() == (rehearses ? 1 : 2));
    if (!rehearses) continue;
    CHECK(is_render(*mailbox.take()));
    CHECK(number_of(*mailbox.take()) == 1);
  }
  Mailbox full;
  for (int i = 0; i < 16; ++i)
    CHECK(full.put_inspection(asks(wire::RenderLatents{}), true));
  CHECK_FALSE(full.put_inspection(asks(wire::RenderLatents{}), true));
}

TEST_CASE("receives of another epoch stay where they are") {
  Mailbox mailbox;
  mailbox.put(task(7, 0, true, 1));
  mailbox.put(task(7, 1, true, 2));
  CHECK(mailbox.take_receives(2).size() == 1);
  CHECK(mailbox.take_receives(2).empty());
  CHECK(number_of(*mailbox.take()) == 0);
}

TEST_CASE("a job's end goes before the tasks of others, and behind what is left of its own") {
  Mailbox mailbox;
  const auto end_of = [](const Message& message) {
    return std::get<wire::EndJob>(message.content).job;
  };
  mailbox.put(task(7, 0, false));
  mailbox.put_end({}, wire::EndJob{8});
  CHECK(end_of(*mailbox.take()) == 8);  // nothing of 8 is here

  // 9 was cancelled with a receive posted for a task that never came, 10 before it began here.
  mailbox.put(task(9, 1, true));
  wire::BeginJob begin;
  begin.job = 10;
  mailbox.put({{}, begin});
  mailbox.put(task(7, 2, false));
  mailbox.put_end({}, wire::EndJob{9});
  mailbox.put_end({}, wire::EndJob{10});
  CHECK(number_of(*mailbox.take()) == 0);
  CHECK(number_of(*mailbox.take()) == 1);
  CHECK(std::get<wire::BeginJob>(mailbox.take()->content).job == 10);
  CHECK(number_of(*mailbox.take()) == 2);
  CHECK(end_of(*mailbox.take()) == 9);
  CHECK(end_of(*mailbox.take()) == 10);
  CHECK(mailbox.size() == 0);
}

TEST_CASE("a closed mailbox gives nothing") {
  Mailbox mailbox;
  mailbox.put(task(7, 0, true));
  mailbox.close();
  CHECK(mailbox.take_receives(1).empty());
  CHECK(!mailbox.take());
}
