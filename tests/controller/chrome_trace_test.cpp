#include "controller/recorder/documents.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/controller/recordings.h"
#include "tests/support/doctest.h"

namespace troupe::recorder {
namespace {

using nlohmann::json;

/// A job that ran to its end, each task 10 ms, of which stage 1 waits 4.
Recorder finished_job(int steps = 2) {
  Recorder recorder;
  recorder.submitted(3, "a red circle", 100 * kMs);
  recorder.phase(3, JobPhase::loading, 110 * kMs);
  const auto graph = two_stages(steps);
  recorder.phase(3, JobPhase::denoising, 120 * kMs);
  recorder.began(3, 7, graph, {4, 5}, 120 * kMs);
  Nanoseconds now = 130 * kMs;
  for (std::uint32_t id = 0; id < graph.tasks.size(); ++id) {
    for (const auto rank : graph.tasks[id].ranks) {
      const auto actor = static_cast<ActorId>(4 + rank);
      recorder.issued(3, id, actor, now);
      const auto ends = now + 10 * kMs;
      std::vector<wire::ClockSpan> waits;
      if (rank == 1 && graph.tasks[id].stage == 1) waits = {{now, now + 4 * kMs}};
      recorder.done(actor, done(3, id, now, ends, waits), ends + kMs);
    }
    now += 10 * kMs;
  }
  recorder.ended(3, JobState::succeeded, "", now + 5 * kMs);
  return recorder;
}

TraceFacts facts() {
  TraceFacts facts;
  facts.controller_host = "hal";
  facts.controller_pid = 1;
  facts.actors = {{4, {"hal", "cpu", 10}}, {5, {"sal", "cpu", 11}}};
  facts.now = 1000 * kMs;
  return facts;
}

struct TraceSlice {
  double begin;
  double end;
};

/// Returns whether each slice of a row lies wholly inside or outside of each other.
bool nests(std::vector<TraceSlice> slices) {
  constexpr double kRounding = 1e-3;
  std::sort(slices.begin(), slices.end(), [](const TraceSlice& a, const TraceSlice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<TraceSlice> open;
  for (const TraceSlice& slice : slices) {
    while (!open.empty() && open.back().end <= slice.begin + kRounding)
      open.pop_back();
    if (!open.empty() && slice.end > open.back().end + kRounding) return false;
    open.push_back(slice);
  }
  return true;
}

}  // namespace

TEST_CASE("a trace has a slice a task, nested waits, and arrows with both ends in slices") {
  const Recorder recorder = finished_job();
  const auto trace = json::parse(chrome_trace({recorder.find(3)}, facts()));
  std::map<std::pair<int, int>, std::vector<TraceSlice>> rows;
  std::map<int, std::set<std::string>> arrows;
  std::multiset<std::string> names;
  const auto inside = [&](const json& event) {
    for (const TraceSlice& slice : rows[{event["pid"], event["tid"]}]) {
      if (slice.begin <= event["ts"] && event["ts"] <= slice.end) return true;
    }
    return false;
  };
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    CHECK(event["dur"] >= 0);
    rows[{event["pid"], event["tid"]}].push_back(
        {event["ts"], event["ts"].get<double>() + event["dur"].get<double>()});
    names.insert(event["name"]);
  }
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "s" && event["ph"] != "f") continue;
    arrows[event["id"]].insert(event["ph"]);
    CHECK(inside(event));
  }
  CHECK(names.count("step 1 patch 1") == 2);
  CHECK(names.count("text") == 2);
  CHECK(names.count("decode") == 1);
  CHECK(names.count("wait") == 5);
  CHECK(names.count("denoising") == 1);
  CHECK(arrows.size() == 6);  // 4 from stage 0 to 1, 2 back for the second step
  for (const auto& [id, ends] : arrows)
    CHECK(ends == std::set<std::string>{"s", "f"});
  for (const auto& [row, slices] : rows)
    CHECK(nests(slices));
  CHECK_FALSE(nests({{0, 10}, {5, 15}}));
}

TEST_CASE("an arrow for each stage that a task sends to") {
  schedule::TaskGraph graph;
  graph.world = 3;
  graph.steps = 1;
  for (int stage = 0; stage < 3; ++stage) {
    graph.tasks.push_back({.stage = stage, .patch = 0, .ranks = {stage}});
    if (stage > 0) graph.tasks.back().predecessors = {static_cast<std::uint32_t>(stage - 1)};
  }
  graph.tasks[0].receivers = {1, 2};
  graph.tasks[1].receivers = {2};
  Recorder recorder;
  recorder.submitted(3, "a red circle", 100 * kMs);
  recorder.began(3, 7, graph, {4, 5, 6}, 120 * kMs);
  for (std::uint32_t id = 0; id < 3; ++id) {
    const auto actor = static_cast<ActorId>(4 + id);
    const Nanoseconds now = (130 + 10 * id) * kMs;
    recorder.issued(3, id, actor, now);
    recorder.done(actor, done(3, id, now, now + 9 * kMs), now + 9 * kMs);
  }
  recorder.ended(3, JobState::succeeded, "", 170 * kMs);
  auto three = facts();
  three.actors[6] = {"sal", "cpu", 12};
  const auto trace = json::parse(chrome_trace({recorder.find(3)}, three));
  std::map<int, std::pair<int, int>> ends;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "s") ends[event["id"]].first = event["tid"];
    if (event["ph"] == "f") ends[event["id"]].second = event["tid"];
  }
  std::set<std::pair<int, int>> drawn;
  for (const auto& [id, both] : ends)
    drawn.insert(both);
  CHECK(ends.size() == 3);
  CHECK(drawn == std::set<std::pair<int, int>>{{5, 6}, {5, 7}, {6, 7}});
}

TEST_CASE("a process row a host, a thread row an actor") {
  const Recorder recorder = finished_job();
  const auto trace = json::parse(chrome_trace({recorder.find(3)}, facts()));
  std::set<std::string> processes;
  std::set<std::string> threads;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes.insert(event["args"]["name"]);
    if (event["name"] == "thread_name") threads.insert(event["args"]["name"]);
  }
  CHECK(processes == std::set<std::string>{"controller on hal (pid 1)", "host hal", "host sal"});
  CHECK(threads ==
        std::set<std::string>{"job 3", "actor 4 (cpu, pid 10)", "actor 5 (cpu, pid 11)"});
}

}  // namespace troupe::recorder
