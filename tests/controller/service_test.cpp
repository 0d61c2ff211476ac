#include "controller/service/client_service.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "controller/plan/plan.h"
#include "tests/controller/service_fixture.h"
#include "tests/support/doctest.h"

using namespace troupe;
using troupe::test::ServiceFixture;

TEST_CASE("while a model is read the controller answers others, also those with other models") {
  ServiceFixture fixture;
  std::vector<std::string> said;
  for (const char* model : {"a", "bad", "b", ""})
    fixture.submit(*fixture.client, model, said);
  std::optional<std::size_t> listed;
  fixture.client->request(
      wire::ListJobs{}, std::chrono::seconds(60),
      [&](const control::Reply& reply) { listed = reply.as<wire::JobList>().jobs.size(); });
  REQUIRE(fixture.until([&] { return listed.has_value(); }));
  CHECK(*listed == 0);
  CHECK(said == std::vector<std::string>{"model is missing: the cluster was started without one"});
  said.clear();
  fixture.gate.open();
  REQUIRE(fixture.until([&] { return said.size() == 3; }));
  std::ranges::sort(said);
  CHECK(said == std::vector<std::string>{"1", "2", "[read_model] bad: no such folder"});
  CHECK(fixture.table.find(1)->fingerprint != 0);
  CHECK(fixture.table.find(1)->fingerprint != fixture.table.find(2)->fingerprint);
}

TEST_CASE("a client that goes while its model is read leaves no job behind") {
  ServiceFixture fixture;
  std::vector<std::string> said;
  auto other = fixture.connect();
  fixture.submit(*other, "a", said);
  fixture.submit(*fixture.client, "b", said);
  bool asked = false;
  other->request(wire::ListJobs{}, std::chrono::seconds(60), [&](const auto&) { asked = true; });
  REQUIRE(fixture.until([&] { return asked; }));
  other->close();
  said.clear();
  REQUIRE(fixture.until([&] { return fixture.server.peers() == 1; }));
  fixture.gate.open();
  REQUIRE(fixture.until([&] { return !said.empty(); }));
  CHECK(said == std::vector<std::string>{"1"});
  CHECK(fixture.table.find(1)->spec.model == "b");
}

TEST_CASE("a cluster that stops takes in no job whose model was being read") {
  ServiceFixture fixture;
  std::vector<std::string> said;
  fixture.submit(*fixture.client, "a", said);
  bool asked = false;
  fixture.client->request(wire::ListJobs{}, std::chrono::seconds(60),
                          [&](const auto&) { asked = true; });
  REQUIRE(fixture.until([&] { return asked; }));
  fixture.clients.close("the cluster is stopping");
  fixture.gate.open();
  REQUIRE(fixture.until([&] { return !said.empty(); }));
  CHECK(said == std::vector<std::string>{"the cluster is stopping"});
  CHECK(fixture.table.all().empty());
}

TEST_CASE("readings are bounded: more than 64 that wait are refused") {
  ServiceFixture fixture;
  std::vector<std::string> said;
  for (int i = 0; i < 66; ++i)
    fixture.submit(*fixture.client, "bad", said);
  REQUIRE(fixture.until([&] { return said.size() == 2; }));
  CHECK(said[0] == "64 jobs wait for their models' folders to be read: try again later");
  fixture.gate.open();
  CHECK(fixture.until([&] { return said.size() == 66; }));
}

TEST_CASE("with a journal a job is answered when it is kept, and refused when it cannot be") {
  ServiceFixture fixture(/*journaled=*/true);
  fixture.gate.open();
  std::vector<std::string> said;
  fixture.submit(*fixture.client, "a", said);
  REQUIRE(fixture.until([&] { return fixture.writes.size() == 1; }));
  CHECK(said.empty());
  CHECK(fixture.table.queue().empty());
  fixture.writes[0]();
  REQUIRE(fixture.until([&] { return said.size() == 1; }));
  CHECK(said[0] == "1");
  CHECK(fixture.table.queue().size() == 1);
  fixture.disk_error = "[journal] the disk is full";
  fixture.submit(*fixture.client, "a", said);
  REQUIRE(fixture.until([&] { return fixture.writes.size() == 2; }));
  fixture.writes[1]();
  REQUIRE(fixture.until([&] { return said.size() == 2; }));
  CHECK(said[1] == fixture.disk_error);
  CHECK(fixture.table.find(2) == nullptr);
  CHECK(fixture.store.load().size() == 1);
}

TEST_CASE("a job that ends while the disk hangs is told of later, however many end meanwhile") {
  ServiceFixture fixture(/*journaled=*/true);
  fixture.gate.open();
  fixture.take_in(*fixture.client);
  std::vector<jobs::JobId> ended;
  fixture.client->on_message([&](const wire::Header& header, auto payload) {
    if (header.kind == wire::Kind::job_finished)
      ended.push_back(wire::decode<wire::JobFinished>(payload).job);
  });
  fixture.runner.cancel(1, "not wanted");
  constexpr std::size_t kMany = 20;  // more than the table keeps
  for (std::size_t i = 0; i < kMany; ++i) {
    wire::JobSpec spec;
    spec.request.prompts = {"x"};
    const auto id = fixture.table.add(spec, plan::make_plan(test::sample_model(), spec.request, {}),
                                      0, true, 0);
    fixture.runner.cancel(id.value(), "not wanted");
  }
  REQUIRE(fixture.table.find(1));
  REQUIRE(fixture.writes.size() == 2 + kMany);
  bool asked = false;
  fixture.client->request(wire::WaitJob{1}, std::chrono::seconds(60),
                          [&](const auto&) { asked = true; });
  REQUIRE(fixture.until([&] { return asked; }));
  CHECK(ended.empty());
  for (std::size_t i = 1; i < fixture.writes.size(); ++i)
    fixture.writes[i]();
  REQUIRE(fixture.until([&] { return !ended.empty(); }));
  CHECK(ended == std::vector<jobs::JobId>{1});
  CHECK(fixture.table.find(1) == nullptr);
  CHECK(fixture.table.all().size() == 8);
}

TEST_CASE("a job that is cancelled before it is in the journal has ended for the recorder, too") {
  ServiceFixture fixture(/*journaled=*/true);
  fixture.gate.open();
  std::vector<std::string> said;
  const auto& ended = fixture.recorder.ended_totals();
  const auto lines = [&] {
    std::uint64_t last = 0;
    std::vector<std::string> texts;
    for (const auto& line : fixture.recorder.lines(0, 100, last))
      texts.push_back(line.text);
    return texts;
  };
  const auto submit = [&](std::size_t writes) {
    fixture.submit(*fixture.client, "a", said);
    REQUIRE(fixture.until([&] { return fixture.writes.size() == writes; }));
  };
  submit(1);
  bool cancelled = false;
  fixture.client->request(wire::CancelJob{1}, std::chrono::seconds(60),
                          [&](const control::Reply& reply) { cancelled = reply.ok(); });
  REQUIRE(fixture.until([&] { return cancelled; }));
  REQUIRE(fixture.writes.size() == 2);
  CHECK(said.empty());
  fixture.writes[0]();
  fixture.writes[1]();
  REQUIRE(fixture.until([&] { return said.size() == 1; }));
  CHECK(said[0] == "1");
  REQUIRE(fixture.recorder.find(1));
  CHECK(fixture.recorder.find(1)->ended.has_value());
  CHECK(fixture.recorder.find(1)->state == JobState::cancelled);
  CHECK(ended.at(JobState::cancelled) == 1);
  CHECK(lines() ==
        std::vector<std::string>{"job 1: submitted", "job 1: cancelled: cancelled by a client"});
  // What is refused after all is no job.
  fixture.disk_error = "[journal] the disk is full";
  submit(3);
  REQUIRE(fixture.recorder.find(2));
  fixture.writes[2]();
  REQUIRE(fixture.until([&] { return said.size() == 2; }));
  CHECK(fixture.recorder.find(2) == nullptr);
  CHECK(lines().back() == "job 2: not taken in: [journal] the disk is full");
  CHECK(ended.size() == 1);
}

TEST_CASE("what is handed in again under its key is the same job, answered or not") {
  ServiceFixture fixture(/*journaled=*/true);
  fixture.gate.open();
  std::vector<std::string> said;
  fixture.submit(*fixture.client, "a", said, 17);
  fixture.submit(*fixture.client, "a", said, 17);
  REQUIRE(fixture.until([&] { return fixture.writes.size() == 1; }));
  fixture.submit(*fixture.client, "a", said, 17);
  bool asked = false;
  fixture.client->request(wire::ListJobs{}, std::chrono::seconds(60),
                          [&](const auto&) { asked = true; });
  REQUIRE(fixture.until([&] { return asked; }));
  CHECK(said.empty());
  fixture.writes[0]();
  REQUIRE(fixture.until([&] { return said.size() == 3; }));
  fixture.submit(*fixture.client, "a", said, 17);
  fixture.submit(*fixture.client, "a", said, 18);
  REQUIRE(fixture.until([&] { return fixture.writes.size() == 2; }));
  fixture.writes[1]();
  REQUIRE(fixture.until([&] { return said.size() == 5; }));
  CHECK(said == std::vector<std::string>{"1", "1", "1", "1", "2"});
}

TEST_CASE("the time for accepting a job is one: reading its model and writing it down together") {
  using std::chrono::milliseconds;
  for (const bool late : {true, false}) {
    CAPTURE(late);
    ServiceFixture fixture(/*journaled=*/true, late ? milliseconds(5000) : milliseconds(50'000));
    std::vector<std::string> said;
    const auto pass = [&](milliseconds time) {
      const auto end = control::Clock::now() + time;
      fixture.until([&] { return control::Clock::now() > end; });
    };
    fixture.submit(*fixture.client, "a", said);
    pass(milliseconds(late ? 2700 : 300));  // neither alone is too long
    fixture.gate.open();
    REQUIRE(fixture.until([&] { return fixture.writes.size() == 1; }));
    pass(milliseconds(late ? 2700 : 300));
    fixture.writes[0]();
    REQUIRE(fixture.until([&] { return said.size() == 1; }));
    CHECK(fixture.table.find(1)->state == (late ? JobState::cancelled : JobState::queued));
    if (late)
      CHECK(fixture.table.find(1)->failure.what == "it was accepted too late for its client");
  }
}

TEST_CASE("the status says of each recent failure when it was") {
  ServiceFixture fixture;
  fixture.failures.note("actor 1 was killed by signal 9");
  std::vector<std::string> recent;
  fixture.client->request(wire::GetStatus{}, std::chrono::seconds(60),
                          [&](const control::Reply& reply) {
                            REQUIRE(reply.ok());
                            recent = reply.as<wire::ClusterStatus>().recent_failures;
                          });
  REQUIRE(fixture.until([&] { return !recent.empty(); }));
  REQUIRE(recent.size() == 1);
  INFO(recent.front());
  CHECK(std::regex_match(recent.front(),
                         std::regex("\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z "
                                    "actor 1 was killed by signal 9")));
}

TEST_CASE("of ten thousand jobs that wait a client is told page by page, each in a moment") {
  constexpr std::uint32_t kJobs = 10'000;
  ServiceFixture fixture(/*journaled=*/false, std::chrono::seconds(25), kJobs);
  wire::JobSpec spec;
  spec.request.prompts = {std::string(400, 'p')};
  const auto plan = plan::make_plan(test::sample_model(), spec.request, {});
  for (std::uint32_t i = 0; i < kJobs; ++i) {
    spec.priority = i == 7000 ? 1 : 0;
    REQUIRE(fixture.table.add(spec, plan, /*owner=*/1, /*detached=*/true, 0));
  }
  double longest = 0;
  const auto page = [&](const wire::ListJobs& asked) {
    std::optional<wire::JobList> list;
    const auto from = control::Clock::now();
    fixture.client->request(asked, std::chrono::seconds(60), [&](const control::Reply& reply) {
      REQUIRE(reply.ok());
      list = reply.as<wire::JobList>();
    });
    REQUIRE(fixture.until([&] { return list.has_value(); }));
    const std::chrono::duration<double> took = control::Clock::now() - from;
    longest = std::max(longest, took.count());
    CHECK(list->all == (asked.job == 0 ? kJobs : 1));
    return list->jobs;
  };
  // A job of higher priority waits before all others, and is on the first page.
  const auto first = page({.most = 3});
  REQUIRE(first.size() == 3);
  CHECK(first[0].id == 1);
  CHECK(first[1].id == 2);
  CHECK(first[2].id == 7001);
  CHECK(first[2].queue_position == 0);
  CHECK(first[0].queue_position == 1);
  std::vector<std::uint64_t> seen;
  for (std::uint32_t skip = 0; skip < kJobs;) {
    const auto rows = page({.skip = skip, .most = 1'000'000});
    REQUIRE(!rows.empty());
    CHECK(rows.size() <= wire::kJobsOfPage);
    for (const auto& row : rows)
      seen.push_back(row.id);
    skip += static_cast<std::uint32_t>(rows.size());
  }
  std::ranges::sort(seen);
  REQUIRE(seen.size() == kJobs);
  CHECK(seen.front() == 1);
  CHECK(seen.back() == kJobs);
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
  const auto one = page({.job = 5000});
  REQUIRE(one.size() == 1);
  CHECK(one[0].queue_position == 5000);
  CHECK(page({.skip = kJobs}).empty());
  MESSAGE("the longest answer took " << 1e3 * longest << " ms");
  CHECK(longest < 2);
}
