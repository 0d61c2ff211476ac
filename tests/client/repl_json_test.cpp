#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/client/fake_controller.h"
#include "tests/client/run_command.h"
#include "tests/support/doctest.h"
#include "transport/wire/inspect_messages.h"

using namespace troupe;
using nlohmann::json;
using testing::FakeController;
using testing::Scratch;

namespace {

/// One document a line.
std::vector<json> documents(const std::string& out) {
  std::vector<json> all;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);)
    all.push_back(json::parse(line));
  return all;
}

void answer_lists(FakeController& controller) {
  controller.on(wire::Kind::list_jobs, [](FakeController& c, control::PeerId peer,
                                          const wire::Header& header, std::span<const std::byte>) {
    wire::JobList list;
    list.jobs.push_back({3, JobState::failed, "a cat", 2, 5, 20, 1.5, "actor 1 died"});
    list.jobs.push_back({4, JobState::queued, "a dog", 1, 0, 20, 0.5, ""});
    c.server().reply(peer, header, list);
  });
  controller.on(wire::Kind::get_status, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::ClusterStatus status;
    status.host = "hal";
    for (std::uint32_t id = 0; id < 2; ++id) {
      wire::ActorRow actor;
      actor.id = id;
      actor.state = ActorState::ready;
      actor.host = "hal";
      actor.device = "cpu";
      actor.groups = {{"pp", {0, 1}, static_cast<std::int32_t>(id)}};
      status.actors.push_back(actor);
    }
    c.server().reply(peer, header, status);
  });
}

}  // namespace

TEST_CASE("repl --json: one document a command on one line, with -c and from standard input") {
  FakeController controller;
  answer_lists(controller);
  const Scratch scratch;
  const std::string commands =
      "jobs; queue; nodes; actors; groups; cancel 4; submit --prompt x; help jobs; help";
  const auto script = scratch.file("script", commands + "\n").string();
  const std::string address = "TROUPE_ADDRESS=" + controller.endpoint();
  const auto given = testing::troupe("repl --json -c '" + commands + "'", address);
  INFO(given.out << given.err);
  REQUIRE(given.exit_code == 0);
  CHECK(given.err.empty());
  const auto got = documents(given.out);
  // The shell's last redirection counts, and what the helper adds goes to `:`.
  const auto piped = testing::troupe(
      "repl --json < " + script + " > " + scratch / "out" + "; exit $?; :", address);
  CHECK(piped.exit_code == 0);
  CHECK(documents(testing::read_all(scratch / "out")).size() == got.size());
  REQUIRE(got.size() == 9);
  CHECK(got[0]["jobs"].size() == 2);
  CHECK(got[0]["jobs"][0]["cause"] == "actor 1 died");
  CHECK(got[0]["jobs"][0]["batch"].is_null());
  REQUIRE(got[1]["jobs"].size() == 1);
  CHECK(got[1]["jobs"][0]["id"] == 4);
  CHECK(got[2]["nodes"][0]["actors"] == 2);
  CHECK(got[2]["nodes"][0]["host"] == got[2]["nodes"][0]["name"]);
  CHECK(got[2]["nodes"][0]["memory_bytes"].is_null());
  CHECK(got[3]["actors"][1]["id"] == 1);
  CHECK(got[3]["actors"][1]["memory_bytes"].is_null());  // 0 is: not known
  CHECK(got[4]["groups"][0] == json({{"axis", "pp"}, {"ranks", {0, 1}}, {"actors", {0, 1}}}));
  CHECK(got[5]["job"] == 4);
  CHECK(got[6]["job"].is_number());
  CHECK(got[7]["name"] == "jobs");
  CHECK(got[8]["commands"].size() > 20);
}

TEST_CASE("repl --json: an error is a document, too, and the rest is tried") {
  FakeController controller;
  answer_lists(controller);
  const auto result =
      testing::troupe("repl --json -c 'jbos; pause x; submit --prompt x --steps 0; jobs'",
                      "TROUPE_ADDRESS=" + controller.endpoint());
  CHECK(result.exit_code == 1);
  const auto got = documents(result.out);
  REQUIRE(got.size() == 4);
  CHECK(got[0]["error"]["code"] == "usage");
  CHECK(got[0]["error"]["message"] == "unknown command jbos; did you mean jobs?");
  CHECK(got[1]["error"]["code"] == "usage");
  CHECK(got[2]["error"]["message"].get<std::string>().find("0 is out of bounds") !=
        std::string::npos);
  CHECK(got[3].contains("jobs"));
}

TEST_CASE("until nan says why the job stands still, once somebody has said so") {
  FakeController controller;
  std::vector<wire::ControlJob> orders;
  controller.on(wire::Kind::control_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte> payload) {
                  orders.push_back(wire::decode<wire::ControlJob>(payload));
                  c.server().reply(peer, header, wire::Done{"job 3 goes on"});
                });
  int looks = 0;
  controller.on(wire::Kind::list_jobs, [&](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::JobList list;
    list.jobs.push_back(
        {3, ++looks > 1 ? JobState::paused : JobState::running, "a cat", 1, 5, 20, 1.5, ""});
    if (looks > 2) list.jobs.back().cause = "step 5 is not finite";
    c.server().reply(peer, header, list);
  });
  const std::string address = "TROUPE_ADDRESS=" + controller.endpoint();
  const auto text = testing::troupe("repl -c 'until 3 nan'", address);
  CHECK(text.out == "job 3 is paused: step 5 is not finite\n");
  CHECK(looks == 3);
  const auto got =
      documents(testing::troupe("repl --json -c 'until 3 nan; until 3 x'", address).out);
  REQUIRE(got.size() == 2);
  CHECK(got[0] == json({{"job", 3}, {"step", 5}, {"cause", "step 5 is not finite"}}));
  CHECK(got[1]["error"]["code"] == "usage");
  REQUIRE(orders.size() == 2);
  CHECK(orders[0].action == wire::JobAction::until_not_finite);
}

TEST_CASE("repl: a lost actor is not a lost controller") {
  FakeController controller;
  answer_lists(controller);
  controller.on(
      wire::Kind::get_mailbox, [](FakeController& c, control::PeerId peer,
                                  const wire::Header& header, std::span<const std::byte>) {
        c.server().reply(peer, header, wire::Failure{wire::FailureCode::lost, "actor 1 is lost"});
      });
  controller.on(wire::Kind::get_logs, [](FakeController& c, control::PeerId peer,
                                         const wire::Header& header, std::span<const std::byte>) {
    c.server().reply(peer, header, wire::LogLines{});
  });
  const auto result =
      testing::troupe("repl -c 'mailbox 1; jobs'", "TROUPE_ADDRESS=" + controller.endpoint());
  CHECK(result.exit_code == 1);
  CHECK(result.err == "troupe: actor 1 is lost\n");
  CHECK(result.out.find("a cat") != std::string::npos);
}

TEST_CASE("a mailbox's entries of a batch bear its name, a job's the job's") {
  FakeController controller;
  controller.on(wire::Kind::list_jobs, [](FakeController& c, control::PeerId peer,
                                          const wire::Header& header, std::span<const std::byte>) {
    wire::JobList list;
    for (const std::uint64_t id : {3, 4, 5}) {
      list.jobs.push_back({id, JobState::running, "a cat", 1, 5, 20, 1.5, ""});
      list.jobs.back().batch = id == 4 ? 0 : 9;
    }
    c.server().reply(peer, header, list);
  });
  controller.on(wire::Kind::get_mailbox,
                [](FakeController& c, control::PeerId peer, const wire::Header& header,
                   std::span<const std::byte>) {
                  wire::MailboxReport report;
                  report.entries = {{"micro-step", 9, 5, 0, 0}, {"text", 4}, {"load", 0}};
                  report.total = report.entries.size();
                  c.server().reply(peer, header, report);
                });
  const std::string address = "TROUPE_ADDRESS=" + controller.endpoint();
  const auto text = testing::troupe("repl -c 'mailbox 0'", address);
  INFO(text.out << text.err);
  CHECK(text.out.find("micro-step  batch 9 (jobs 3, 5)  5 ") != std::string::npos);
  CHECK(text.out.find("text        job 4 ") != std::string::npos);
  CHECK(text.out.find("load        - ") != std::string::npos);
  const auto got = documents(testing::troupe("repl --json -c 'mailbox 0'", address).out);
  REQUIRE(got.size() == 1);
  CHECK(got[0]["entries"][0]["name"] == "batch 9 (jobs 3, 5)");
  CHECK(got[0]["entries"][1]["name"] == "job 4");
  CHECK(got[0]["entries"][2]["name"] == "");
}
