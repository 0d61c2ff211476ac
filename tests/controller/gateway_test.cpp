#include "controller/gateway/gateway.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/controller/hall.h"
#include "tests/support/doctest.h"

using namespace troupe;
using troupe::test::Hall;

TEST_CASE("while a model is read the controller answers others, also those with other models") {
  Hall hall;
  std::vector<std::string> said;
  for (const char* model : {"a", "bad", "b", ""})
    hall.submit(*hall.client, model, said);
  std::optional<std::size_t> listed;
  hall.client->request(
      wire::ListJobs{}, std::chrono::seconds(60),
      [&](const control::Reply& reply) { listed = reply.as<wire::JobList>().jobs.size(); });
  REQUIRE(hall.until([&] { return listed.has_value(); }));
  CHECK(*listed == 0);
  CHECK(said == std::vector<std::string>{"model is missing: the cluster was started without one"});
  said.clear();
  hall.gate.open();
  REQUIRE(hall.until([&] { return said.size() == 3; }));
  std::ranges::sort(said);
  CHECK(said == std::vector<std::string>{"1", "2", "[read_model] bad: no such folder"});
  CHECK(hall.table.find(1)->fingerprint != 0);
  CHECK(hall.table.find(1)->fingerprint != hall.table.find(2)->fingerprint);
}

TEST_CASE("a client that goes while its model is read leaves no job behind") {
  Hall hall;
  std::vector<std::string> said;
  auto other = hall.connect();
  hall.submit(*other, "a", said);
  hall.submit(*hall.client, "b", said);
  bool asked = false;
  other->request(wire::ListJobs{}, std::chrono::seconds(60), [&](const auto&) { asked = true; });
  REQUIRE(hall.until([&] { return asked; }));
  other->close();
  said.clear();
  REQUIRE(hall.until([&] { return hall.server.peers() == 1; }));
  hall.gate.open();
  REQUIRE(hall.until([&] { return !said.empty(); }));
  CHECK(said == std::vector<std::string>{"1"});
  CHECK(hall.table.find(1)->spec.model == "b");
}

TEST_CASE("a cluster that stops takes in no job whose model was being read") {
  Hall hall;
  std::vector<std::string> said;
  hall.submit(*hall.client, "a", said);
  bool asked = false;
  hall.client->request(wire::ListJobs{}, std::chrono::seconds(60),
                       [&](const auto&) { asked = true; });
  REQUIRE(hall.until([&] { return asked; }));
  hall.gateway.close("the cluster is stopping");
  hall.gate.open();
  REQUIRE(hall.until([&] { return !said.empty(); }));
  CHECK(said == std::vector<std::string>{"the cluster is stopping"});
  CHECK(hall.table.all().empty());
}

TEST_CASE("readings are bounded: more than 64 that wait are refused") {
  Hall hall;
  std::vector<std::string> said;
  for (int i = 0; i < 66; ++i)
    hall.submit(*hall.client, "bad", said);
  REQUIRE(hall.until([&] { return said.size() == 2; }));
  CHECK(said[0] == "64 jobs wait for their models' folders to be read: try again later");
  hall.gate.open();
  CHECK(hall.until([&] { return said.size() == 66; }));
}

TEST_CASE("with a journal a job is answered when it is kept, and refused when it cannot be") {
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  std::vector<std::string> said;
  hall.submit(*hall.client, "a", said);
  REQUIRE(hall.until([&] { return hall.writes.size() == 1; }));
  CHECK(said.empty());
  CHECK(hall.table.queue().empty());
  hall.writes[0]();
  REQUIRE(hall.until([&] { return said.size() == 1; }));
  CHECK(said[0] == "1");
  CHECK(hall.table.queue().size() == 1);
  hall.disk_error = "[journal] the disk is full";
  hall.submit(*hall.client, "a", said);
  REQUIRE(hall.until([&] { return hall.writes.size() == 2; }));
  hall.writes[1]();
  REQUIRE(hall.until([&] { return said.size() == 2; }));
  CHECK(said[1] == hall.disk_error);
  CHECK(hall.table.find(2) == nullptr);
  CHECK(hall.store.load().size() == 1);
}

TEST_CASE("a job that ends while the disk hangs is told of later, however many end meanwhile") {
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  hall.take_in(*hall.client);
  std::vector<jobs::JobId> ended;
  hall.client->on_message([&](const wire::Header& header, auto payload) {
    if (header.kind == wire::Kind::job_finished)
      ended.push_back(wire::decode<wire::JobFinished>(payload).job);
  });
  hall.runner.cancel(1, "not wanted");
  constexpr std::size_t kMany = 20;  // more than the table keeps
  for (std::size_t i = 0; i < kMany; ++i) {
    wire::JobSpec spec;
    spec.request.prompts = {"x"};
    const auto id =
        hall.table.add(spec, plan::make_plan(test::sample_model(), spec.request, {}), 0, true, 0);
    hall.runner.cancel(id.value(), "not wanted");
  }
  REQUIRE(hall.table.find(1));
  REQUIRE(hall.writes.size() == 2 + kMany);
  bool asked = false;
  hall.client->request(wire::WaitJob{1}, std::chrono::seconds(60),
                       [&](const auto&) { asked = true; });
  REQUIRE(hall.until([&] { return asked; }));
  CHECK(ended.empty());
  for (std::size_t i = 1; i < hall.writes.size(); ++i)
    hall.writes[i]();
  REQUIRE(hall.until([&] { return !ended.empty(); }));
  CHECK(ended == std::vector<jobs::JobId>{1});
  CHECK(hall.table.find(1) == nullptr);
  CHECK(hall.table.all().size() == 8);
}

TEST_CASE("a job that is cancelled before it is in the journal has ended for the recorder, too") {
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  std::vector<std::string> said;
  const auto& ended = hall.recorder.ended_totals();
  const auto lines = [&] {
    std::uint64_t last = 0;
    std::vector<std::string> texts;
    for (const auto& line : hall.recorder.lines(0, 100, last))
      texts.push_back(line.text);
    return texts;
  };
  const auto submit = [&](std::size_t writes) {
    hall.submit(*hall.client, "a", said);
    REQUIRE(hall.until([&] { return hall.writes.size() == writes; }));
  };
  submit(1);
  bool cancelled = false;
  hall.client->request(wire::CancelJob{1}, std::chrono::seconds(60),
                       [&](const control::Reply& reply) { cancelled = reply.ok(); });
  REQUIRE(hall.until([&] { return cancelled; }));
  REQUIRE(hall.writes.size() == 2);
  CHECK(said.empty());
  hall.writes[0]();
  hall.writes[1]();
  REQUIRE(hall.until([&] { return said.size() == 1; }));
  CHECK(said[0] == "1");
  REQUIRE(hall.recorder.find(1));
  CHECK(hall.recorder.find(1)->ended.has_value());
  CHECK(hall.recorder.find(1)->state == "cancelled");
  CHECK(ended.at("cancelled") == 1);
  CHECK(lines() ==
        std::vector<std::string>{"job 1: submitted", "job 1: cancelled: cancelled by a client"});
  // What is refused after all is no job.
  hall.disk_error = "[journal] the disk is full";
  submit(3);
  REQUIRE(hall.recorder.find(2));
  hall.writes[2]();
  REQUIRE(hall.until([&] { return said.size() == 2; }));
  CHECK(hall.recorder.find(2) == nullptr);
  CHECK(lines().back() == "job 2: not taken in: [journal] the disk is full");
  CHECK(ended.size() == 1);
}

TEST_CASE("what is handed in again under its key is the same job, answered or not") {
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  std::vector<std::string> said;
  hall.submit(*hall.client, "a", said, 17);
  hall.submit(*hall.client, "a", said, 17);
  REQUIRE(hall.until([&] { return hall.writes.size() == 1; }));
  hall.submit(*hall.client, "a", said, 17);
  bool asked = false;
  hall.client->request(wire::ListJobs{}, std::chrono::seconds(60),
                       [&](const auto&) { asked = true; });
  REQUIRE(hall.until([&] { return asked; }));
  CHECK(said.empty());
  hall.writes[0]();
  REQUIRE(hall.until([&] { return said.size() == 3; }));
  hall.submit(*hall.client, "a", said, 17);
  hall.submit(*hall.client, "a", said, 18);
  REQUIRE(hall.until([&] { return hall.writes.size() == 2; }));
  hall.writes[1]();
  REQUIRE(hall.until([&] { return said.size() == 5; }));
  CHECK(said == std::vector<std::string>{"1", "1", "1", "1", "2"});
}

TEST_CASE("the time for accepting a job is one: reading its model and writing it down together") {
  using std::chrono::milliseconds;
  for (const bool late : {true, false}) {
    CAPTURE(late);
    Hall hall(/*journaled=*/true, late ? milliseconds(5000) : milliseconds(50'000));
    std::vector<std::string> said;
    const auto pass = [&](milliseconds time) {
      const auto end = control::Clock::now() + time;
      hall.until([&] { return control::Clock::now() > end; });
    };
    hall.submit(*hall.client, "a", said);
    pass(milliseconds(late ? 2700 : 300));  // neither alone is too long
    hall.gate.open();
    REQUIRE(hall.until([&] { return hall.writes.size() == 1; }));
    pass(milliseconds(late ? 2700 : 300));
    hall.writes[0]();
    REQUIRE(hall.until([&] { return said.size() == 1; }));
    CHECK(hall.table.find(1)->state == (late ? wire::JobState::cancelled : wire::JobState::queued));
    if (late) CHECK(hall.table.find(1)->failure.what == "it was accepted too late for its client");
  }
}
