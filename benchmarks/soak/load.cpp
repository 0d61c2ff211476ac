#include "benchmarks/soak/load.h"

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "benchmarks/demo_jobs.h"
#include "examples/actors/counter.h"
#include "troupe/actor.h"
#include "troupe/inspect.h"

namespace troupe::soak {
namespace {

using namespace std::chrono_literals;
using bench::take;

constexpr auto kJobDeadline = 300s;
constexpr auto kUserPatience = 90s;
constexpr int kSteps = 10;

Submission submission(const Kind& kind) {
  auto job = bench::picture_job(128, kSteps, 4.5, kind.patches, 11, kind.degrees);
  job.request.method = kind.method;
  job.request.want_latents = true;
  if (kind.degrees.dp == 2) job.request.images_per_prompt = 2;
  return job;
}

}  // namespace

std::uint64_t Load::hand_in(Client& client, const Kind& kind) {
  auto taken = client.submit(submission(kind));
  // A hostile one may have filled the queue.
  for (const auto end = Clock::now() + kUserPatience;
       !taken && taken.error().code == ErrorCode::overloaded && Clock::now() < end;) {
    std::this_thread::sleep_for(200ms);
    taken = client.submit(submission(kind));
  }
  const auto job = take(std::move(taken));
  const std::lock_guard lock(mutex_);
  if (!numbers_.insert(job).second)
    faults_.note("the number " + std::to_string(job) + " was given twice");
  return job;
}

void Load::every_kind() {
  auto client = cluster_.connect();
  const bool first = kinds_.empty();
  if (first) {
    kinds_ = {Kind{"exact", 1, {.dp = 1, .cfg = 2, .pp = 2}},
              Kind{"exact", 1, {.dp = 1, .cfg = 1, .pp = 1, .ulysses = 2, .tp = 2}},
              Kind{"exact", 1, {.dp = 2}},
              Kind{"exact", 1, {.dp = 1, .cfg = 1, .pp = 3}},
              Kind{"exact", 1, {}},
              Kind{"pipefusion", 4, {.dp = 1, .cfg = 2, .pp = 2}},
              Kind{"distrifusion", 4, {.dp = 1, .cfg = 1, .pp = 1, .ulysses = 1, .ring = 2}}};
    std::erase_if(kinds_,
                  [&](const Kind& kind) { return kind.degrees.world() > cluster_.places(); });
  }
  for (Kind& kind : kinds_) {
    const auto job = hand_in(client, kind);
    const auto result = client.wait(job, kJobDeadline);
    if (first) {
      kind.undisturbed = take(result).latents->data;
      check_trace(job);
    } else {
      judge(kind, result, true);
    }
  }
}

void Load::hand_in(Clock::time_point end, unsigned seed) {
  std::mt19937 random(seed);
  auto client = cluster_.connect();
  while (Clock::now() < end) {
    if (random() % 10 == 0) client = cluster_.connect();
    const Kind& kind = kinds_[random() % kinds_.size()];
    const auto job = hand_in(client, kind);
    if (random() % 8 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1500));
      (void)client.cancel(job);
    }
    judge(kind, client.wait(job, kJobDeadline), random() % 8 == 0);
  }
}

void Load::judge(const Kind& kind, const Result<JobResult>& result, bool look_at_trace) {
  if (!result) {
    if (result.error().code == ErrorCode::cancelled) {
      ++counts_.cancelled;
    } else if (result.error().what.find("was lost with its host") != std::string::npos ||
               result.error().what.find("the host is leaving") != std::string::npos) {
      ++counts_.host_gone;  // by contract: a host's places stay empty until it is back
    } else if (counts_.bits_flipped > 0 && result.error().what.starts_with("[journal] job ")) {
      ++counts_.lost_and_named;
    } else {
      ++counts_.failed;
      faults_.note(to_string(result.error().code) + ": " + result.error().what);
    }
    return;
  }
  ++counts_.succeeded;
  const auto report = nlohmann::json::parse(result.value().report);
  counts_.recoveries += static_cast<int>(report.at("recoveries").size());
  if (look_at_trace) check_trace(result.value().job);
  // A stale job that filled a step anew is another picture by contract, and says so.
  if (!report.at("request").at("refill_steps").empty()) return;
  ++counts_.compared;
  if (result.value().latents->data == kind.undisturbed) return;
  ++counts_.different;
  faults_.note("job " + std::to_string(result.value().job) + " (" + kind.method +
               ") has other latents");
}

/// Slices that end before they begin, and arrows without both ends, are no trace.
void Load::check_trace(std::uint64_t job) {
  auto inspector = Inspector::connect(cluster_.endpoint());
  if (!inspector) return;  // a controller is being started again
  const auto text = inspector.value().timeline(job);
  if (!text) return;  // of an earlier controller
  int slices = 0;
  std::map<std::string, int> arrows;
  const auto trace = nlohmann::json::parse(text.value());
  for (const auto& event : trace.at("traceEvents")) {
    const auto kind = event.at("ph").get<std::string>();
    if (kind == "X") {
      ++slices;
      if (event.at("dur").get<double>() < 0)
        faults_.note("a slice of job " + std::to_string(job) + " ends before it begins");
    }
    if (kind == "s") ++arrows[event.at("id").dump()];
    if (kind == "f") --arrows[event.at("id").dump()];
  }
  for (const auto& [id, ends] : arrows)
    if (ends != 0) faults_.note("an arrow of job " + std::to_string(job) + " has one end");
  if (slices == 0) faults_.note("job " + std::to_string(job) + " has a trace without slices");
  ++counts_.traces;
}

void Load::call_users(Clock::time_point end) {
  auto client = cluster_.connect();
  auto last = Clock::now();
  std::string why = "nothing";
  while (Clock::now() < end) {
    // Another one after each controller: users' actors end with theirs.
    const auto counter = client.actors().get_or_create<Counter>(
        {.name = "soak", .detached = true, .max_restarts = -1}, 0);
    bool lives = counter.ok();
    if (!lives) why = counter.error().what;
    while (lives && Clock::now() < end) {
      const auto sum = counter.value().within(10s).call<&Counter::add>(1).wait(11s);
      if (sum) {
        last = Clock::now();
        ++counts_.user_calls;
      } else {
        why = sum.error().what;
        lives = false;
      }
      std::this_thread::sleep_for(20ms);
    }
    if (Clock::now() - last > kUserPatience)
      throw std::runtime_error("a users' actor does not come back: " + why);
    std::this_thread::sleep_for(100ms);
    if (!client.status()) client = cluster_.connect();
  }
}

}  // namespace troupe::soak
