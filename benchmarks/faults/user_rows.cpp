#include <signal.h>

#include <thread>

#include "benchmarks/demo_jobs.h"
#include "benchmarks/faults/rows.h"
#include "tests/user_actors/classes.h"
#include "troupe/actor.h"

namespace troupe::faults {
namespace {

using namespace std::chrono_literals;
using bench::take;
using testing::Probe;

constexpr auto kHang = 1s;

/// An actor that is inside a method ends; the call fails, and the next one that answers is of its
/// new process. Each time another actor: what one has behind it (restarts, calls) is in no figure.
Row lost_user(const std::string& name, bool hangs, const Options& options) {
  auto wanted = cluster_options(options, 1);
  wanted.plugins = {options.plugin};
  cluster::Cluster cluster(wanted);
  cluster.wait_ready(2min);
  auto client = take(Client::connect(cluster.endpoint()));
  auto users = client.actors();
  SpawnOptions wishes{.max_restarts = -1};
  if (hangs) wishes.hang_after = kHang;
  const auto process_of = [&](std::uint64_t id) {
    for (const auto& actor : take(users.list()))
      if (actor.id == id) return static_cast<pid_t>(actor.pid);
    throw std::runtime_error("the actor is gone");
  };
  std::vector<double> noticed, again;
  for (int time = 0; time < options.times; ++time) {
    const auto probe = take(users.spawn<Probe>(wishes, "p")).within(60s);
    // An actor that dies within a second of its start begins anew a second later.
    std::this_thread::sleep_for(1200ms);
    const auto victim = process_of(probe.id());
    auto under_way = probe.call<&Probe::sleep>(60'000);
    if (!hangs) std::this_thread::sleep_for(50ms);
    const auto start = Clock::now();
    if (!hangs) kill(victim, SIGKILL);
    const auto fall = under_way.wait(60s);
    noticed.push_back(since(start));
    if (fall) throw std::runtime_error("the call was answered");
    wait_for("new process", [&] { return probe.call<&Probe::name>().wait(60s).ok(); });
    again.push_back(since(start));
    take(probe.kill());
  }
  return {name, {{"its_call_failed", noticed}, {"answers_again", again}}, -1};
}

}  // namespace

std::vector<NamedRow> user_rows() {
  const std::string killed = "kill -9 of a users' actor",
                    hung = "users' actor hangs in a method (hang_after 1 s)";
  return {{killed, [killed](const Options& options) { return lost_user(killed, false, options); }},
          {hung, [hung](const Options& options) { return lost_user(hung, true, options); }}};
}

}  // namespace troupe::faults
