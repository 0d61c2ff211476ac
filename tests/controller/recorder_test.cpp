#include "controller/recorder/recorder.h"

#include <nlohmann/json.hpp>
#include <string>

#include "controller/recorder/documents.h"
#include "tests/controller/recordings.h"
#include "tests/support/doctest.h"

namespace troupe::recorder {

using nlohmann::json;

TEST_CASE("an actor's times are put into the controller's clock by its best reading") {
  Recorder recorder;
  recorder.submitted(1, "x", 0);
  recorder.began(1, 7, two_stages(1), {0, 1}, 0);
  recorder.clock_reading(0, 99, 1000, 3000, 52'000);  // 2000 there and back: it is 50'000 ahead
  recorder.clock_reading(0, 99, 5000, 9000, 90'000);  // a longer way says less
  CHECK(recorder.clock_offset(0) == -50'000);
  recorder.issued(1, 1, 0, 4000);
  recorder.done(0, done(1, 1, 55'000, 56'000, {{54'000, 55'500}, {55'600, 99'000}}), 7000);
  const TaskNote& note = recorder.find(1)->attempts.back().notes.back();
  CHECK(note.ran == wire::ClockSpan{5000, 6000});
  REQUIRE(note.waits.size() == 2);
  CHECK(note.waits[0] == wire::ClockSpan{5000, 5500});  // within the task, whatever the actor says
  CHECK(note.waits[1] == wire::ClockSpan{5600, 6000});
  recorder.clock_reading(0, 100, 5000, 9000, 7'000);  // another process, another clock
  CHECK(recorder.clock_offset(0) == 0);
}

TEST_CASE("what does not belong to the epoch or was never issued changes nothing") {
  Recorder recorder;
  recorder.submitted(1, "x", 0);
  recorder.began(1, 7, two_stages(1), {0, 1}, 0);
  recorder.issued(1, 1, 0, 10);
  recorder.issued(1, 1'000, 0, 10);
  recorder.done(0, done(2, 1, 0, 1), 20);
  recorder.done(1, done(1, 1, 0, 1), 20);
  auto late = done(1, 1, 0, 1);
  late.epoch = 6;
  recorder.done(0, late, 20);
  REQUIRE(recorder.find(1)->attempts.back().notes.size() == 1);
  CHECK_FALSE(recorder.find(1)->attempts.back().notes.back().ran);
  recorder.done(0, done(1, 1, 9, 5), 20);
  CHECK(recorder.find(1)->attempts.back().notes.back().ran == wire::ClockSpan{9, 9});
  CHECK(recorder.totals().at(wire::TaskKind::micro_step).tasks == 1);
  recorder.done(0, done(1, 1, 0, 100), 20);  // a second time
  CHECK(recorder.totals().at(wire::TaskKind::micro_step).tasks == 1);
}

TEST_CASE(
    "of jobs that succeed the seconds of each phase are counted, and bytes by kind of group") {
  Recorder recorder;
  const auto at = [](double time) { return nanoseconds(time); };
  recorder.submitted(1, "x", at(0));
  recorder.phase(1, JobPhase::denoising, at(2));
  recorder.phase(1, JobPhase::queued, at(3));  // began again
  recorder.phase(1, JobPhase::denoising, at(4));
  recorder.ended(1, JobState::succeeded, "", at(9));
  recorder.submitted(2, "x", at(0));
  recorder.ended(2, JobState::failed, "y", at(70));
  const auto& phases = recorder.phase_seconds();
  REQUIRE(phases.size() == 2);
  CHECK(recorder.job_seconds().count() == 1);
  CHECK(recorder.job_seconds().sum() == doctest::Approx(9));
  CHECK(phases.at(JobPhase::queued).sum() == doctest::Approx(3));
  CHECK(phases.at(JobPhase::denoising).sum() == doctest::Approx(6));
  wire::ActorJobStats stats;
  stats.sent_by_group = {{1, 10}, {2, 20}, {3, 5}};
  recorder.cost(stats, {{1, "edge"}, {2, "edge"}, {3, "cfg"}});
  CHECK(recorder.byte_totals().sent_by_group ==
        std::map<std::string, std::uint64_t>{{"cfg", 5}, {"edge", 30}});
}

TEST_CASE("memory is bounded, and the newest stays") {
  Recorder recorder(
      {.jobs = 3, .attempts = 2, .tasks = 1000, .notes = 10, .all_notes = 15, .events = 20});
  for (JobId job = 1; job <= 5; ++job) {
    recorder.submitted(job, "x", static_cast<Nanoseconds>(job));
    for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
      recorder.began(job, epoch, two_stages(5), {0, 1}, 0);
      for (std::uint32_t task = 0; task < 20; ++task)
        recorder.issued(job, task, 0, 0);
    }
    if (job < 5) recorder.ended(job, JobState::succeeded, "", 0);
  }
  CHECK(recorder.jobs().size() == 4);  // three that have ended, and the one that runs
  CHECK_FALSE(recorder.find(1));
  REQUIRE(recorder.find(5));
  CHECK(recorder.find(5)->attempts.size() == 2);
  std::size_t notes = 0;
  for (const auto& [id, job] : recorder.jobs()) {
    for (const auto& attempt : job.attempts)
      notes += attempt.notes.size();
  }
  CHECK(notes <= 15);
  CHECK(recorder.find(5)->attempts.back().notes.back().task == 19);
  CHECK(recorder.find(5)->attempts.back().notes.size() == 10);
  CHECK(recorder.events().size() == 20);
}

TEST_CASE("jobs that have not ended are remembered, however many there are") {
  Recorder recorder({.jobs = 2});
  for (JobId job = 1; job <= 20; ++job)
    recorder.submitted(job, "x", 0);
  recorder.began(1, 7, two_stages(5), {0, 1}, 0);
  recorder.issued(1, 0, 0, 0);
  CHECK(recorder.jobs().size() == 20);
  for (JobId job = 20; job >= 2; --job)
    recorder.ended(job, JobState::cancelled, "", 0);
  CHECK(recorder.jobs().size() == 3);
  REQUIRE(recorder.find(1));
  CHECK(recorder.find(1)->attempts.back().notes.size() == 1);
  CHECK(recorder.find(2));  // the last that ended
  CHECK(recorder.find(3));
  CHECK_FALSE(recorder.find(20));
  CHECK(recorder.ended_totals().at(JobState::cancelled) == 19);
}

TEST_CASE("graphs of ended jobs go before those of jobs that run") {
  Recorder recorder(
      {.jobs = 10, .attempts = 8, .tasks = 60, .notes = 100, .all_notes = 100, .events = 9});
  for (JobId job = 1; job <= 6; ++job) {
    recorder.submitted(job, "x", 0);
    recorder.began(job, 7, two_stages(5), {0, 1}, 0);  // 22 tasks
    if (job != 2) recorder.ended(job, JobState::succeeded, "", 0);
  }
  CHECK(recorder.jobs().size() == 6);
  CHECK(recorder.find(1)->attempts.empty());
  CHECK(recorder.find(2)->attempts.size() == 1);
  CHECK(recorder.find(6)->attempts.size() == 1);
  recorder.issued(1, 0, 0, 0);  // whose graph is gone
  CHECK(json::parse(graph_text(*recorder.find(1)))["tasks"].empty());
}

TEST_CASE("a graph says where each task is") {
  Recorder recorder;
  recorder.submitted(1, "x", 0);
  recorder.began(1, 7, two_stages(1), {4, 5}, 0);
  recorder.issued(1, 0, 4, 0);
  recorder.issued(1, 0, 5, 0);
  recorder.done(4, done(1, 0, 0, 2 * kMs), 0);
  auto graph = json::parse(graph_text(*recorder.find(1), true, "a NaN", 7));
  CHECK(graph["kept_steps"] == 7);
  CHECK(graph["paused"] == true);
  CHECK(graph["not_finite"] == "a NaN");
  graph = json::parse(graph_text(*recorder.find(1)));
  CHECK(graph["not_finite"].is_null());
  CHECK(graph["tasks"].size() == 6);
  CHECK(graph["tasks"][0]["state"] == "issued");
  CHECK(graph["tasks"][0]["at"] == json::array({5}));
  CHECK(graph["tasks"][1]["state"] == "waiting");
  CHECK(graph["tasks"][2]["actors"] == json::array({5}));
  CHECK(graph["tasks"][2]["after"] == json::array({1}));
  recorder.done(5, done(1, 0, 0, kMs), 0);
  graph = json::parse(graph_text(*recorder.find(1)));
  CHECK(graph["tasks"][0]["state"] == "done");
  CHECK(graph["tasks"][0]["seconds"] == doctest::Approx(0.002));
  recorder.submitted(2, "y", 0);
  CHECK(json::parse(graph_text(*recorder.find(2)))["tasks"].empty());
}

TEST_CASE("a flight record has the failure, what lay unfinished, and the last events") {
  Recorder recorder;
  recorder.submitted(1, "a \xff byte", 0);
  recorder.began(1, 7, two_stages(1), {4, 5}, 0);
  recorder.issued(1, 1, 4, kMs);
  recorder.failed(1, 4, "actor 4, step 0 patch 0 stage 0: it broke", 2 * kMs);
  const auto record = json::parse(flight_record(recorder, 1, 1, "it broke", 1001 * kMs));
  CHECK(record["failure"] == "it broke");
  REQUIRE(record["unfinished"].size() == 1);
  CHECK(record["unfinished"][0]["name"] == "step 0 patch 0 stage 0");
  CHECK(record["unfinished"][0]["issued"] == doctest::Approx(-1.0));
  CHECK(record["events"].back()["event"] == "failure");
  CHECK(record["events"].back()["actor"] == 4);
}

TEST_CASE("who may know of its own jobs alone is told of no other's events") {
  Recorder recorder;
  for (const JobId job : {1, 2, 3}) {
    recorder.submitted(job, "x", 0);
    recorder.began(job, 7, two_stages(1), {4, 5}, 0);
    recorder.failed(job, 4, "it broke", kMs);
  }
  recorder.note(Event::Kind::epoch, 0, std::nullopt, "jobs 2, 3 go on elsewhere", kMs);
  const auto record = flight_record(recorder, 1, 3, "it broke", 2 * kMs);
  CHECK(record.find("jobs 2, 3") != std::string::npos);
  const auto own = json::parse(own_part(record, 1, 3));
  CHECK(own["failure"] == "it broke");
  CHECK_FALSE(own["events"].empty());
  for (const auto& event : own["events"])
    CHECK((event["job"] == 1 || event["job"] == 3));
}

TEST_CASE("of a batch's job the record has its own phases and what the batch did") {
  Recorder recorder;
  recorder.submitted(1, "x", 0);
  recorder.submitted(2, "y", 0);
  recorder.joined(3, "batch 3 (jobs 1, 2)", "jobs 1, 2", kMs);
  recorder.phase(1, JobPhase::denoising, 2 * kMs);
  recorder.began(3, 7, two_stages(1), {4, 5}, 2 * kMs);
  recorder.issued(3, 1, 4, 3 * kMs);
  const auto record = json::parse(flight_record(recorder, 1, 3, "it broke", 1003 * kMs));
  CHECK(record["job"] == 1);
  CHECK(record["prompt"] == "x");
  CHECK(record["batch"] == "batch 3 (jobs 1, 2)");
  CHECK(record["phases"].back()["phase"] == "denoising");
  CHECK(record["epochs"].size() == 1);
  REQUIRE(record["unfinished"].size() == 1);
  CHECK(record["unfinished"][0]["issued"] == doctest::Approx(-1.0));
  CHECK(record["events"].back()["batch"] == "batch 3 (jobs 1, 2)");
  const auto whole = json::parse(flight_record(recorder, 3, 3, "it broke", 1003 * kMs));
  CHECK(whole["prompt"] == "jobs 1, 2");
  CHECK(whole["unfinished"].size() == 1);
  CHECK(json::parse(graph_text(*recorder.find(3)))["name"] == "batch 3 (jobs 1, 2)");
  CHECK(json::parse(graph_text(*recorder.find(1)))["name"] == "job 1");
  TraceFacts facts;
  facts.now = 4 * kMs;
  const auto trace = chrome_trace({recorder.find(1), recorder.find(3)}, facts);
  CHECK(trace.find("\"batch 3 (jobs 1, 2)\"") != std::string::npos);
  CHECK(trace.find("\"job 3\"") == std::string::npos);
  recorder.note(Event::Kind::epoch, 3, std::nullopt, "its epoch ends", 4 * kMs);
  std::uint64_t last = 0;
  CHECK(recorder.lines(0, 1, last).front().text == "batch 3 (jobs 1, 2): its epoch ends");
}

TEST_CASE("the controller's lines are numbered, so that a follower misses and repeats none") {
  Recorder recorder;
  recorder.submitted(1, "x", 1'500'000'000);
  std::uint64_t last = 0;
  auto lines = recorder.lines(0, 10, last);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].text == "job 1: submitted");
  CHECK(lines[0].at == 1'500'000'000);
  CHECK(last == 1);
  recorder.began(1, 7, two_stages(1), {4, 5}, 0);
  recorder.issued(1, 0, 4, 0);  // no line of its own
  recorder.note(Event::Kind::actor, 0, 2, "is ready", 0);
  lines = recorder.lines(last, 10, last);
  CHECK(lines.size() == 2);
  CHECK(lines.back().text == "actor 2: is ready");
  CHECK(recorder.lines(last, 10, last).empty());
  CHECK(recorder.lines(0, 1, last).size() == 1);
}

}  // namespace troupe::recorder
