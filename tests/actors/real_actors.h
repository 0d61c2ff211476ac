#pragma once
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "actors/actor_process.h"
#include "tests/controller/job_rooms.h"

namespace troupe::test {

inline const std::string kFixtures = TROUPE_SOURCE_DIR "/tests/fixtures/";

/// Two real actors on threads of this process, told what to do by the real rooms of a controller. A
/// class that derives from it calls `start` and `stop` itself.
struct RealActors : JobRooms {
  using Options = std::function<void(int actor, actors::ActorOptions&)>;

  explicit RealActors(const Around& around = {}) : JobRooms({}, around) {
    server.on_connect([this](const control::PeerInfo& peer) { return members.hello(peer); });
    server.on_ready([this](control::PeerId peer) {
      deployments.actor_ready(members.by_peer(peer)->id);
      runner.start_queued();
    });
    server.on_message([this](control::PeerId peer, const wire::Header& header,
                             std::span<const std::byte> payload) {
      const auto id = members.by_peer(peer)->id;
      if (header.kind == wire::Kind::task_done) {
        const auto done = wire::decode<wire::TaskDone>(payload);
        ran.push_back(done.ran);
        runner.task_done(id, done);
      }
      if (header.kind != wire::Kind::task_failed) return;
      const auto failed = wire::decode<wire::TaskFailed>(payload);
      if (!failed.collateral) troubles.push_back(failed.failure.what);
      runner.task_failed(id, failed);
    });
  }
  ~RealActors() { stop(); }

  void start(const Options& change = {}) {
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t incarnation = 77 + i;
      members.spawned(members.add("here", "cpu").id, incarnation, 1);
      actors::ActorOptions options{.control_endpoint = server.endpoint(),
                                   .blob_endpoint = blob_server.endpoint(),
                                   .id = static_cast<std::uint32_t>(i),
                                   .incarnation = incarnation,
                                   .token = "secret"};
      if (change) change(i, options);
      threads.emplace_back([options] {
        actors::ActorProcess actor(options);
        actor.run();
      });
    }
    REQUIRE(until([this] { return members.ready_count() == 2; }));
  }
  void stop() {
    if (threads.empty()) return;
    for (const auto& [id, actor] : members.all())
      server.send(actor.peer, wire::Shutdown{});
    until([this] { return server.peers() == 0; });
    for (auto& thread : threads)
      thread.join();
    threads.clear();
  }

  static wire::JobSpec spec(std::uint64_t seed, const std::string& model = "tiny-pixart") {
    wire::JobSpec spec;
    spec.model = kFixtures + model;
    spec.request.prompts = {"a red circle"};
    spec.request.steps = 6;
    spec.request.seed = seed;
    spec.request.want_latents = true;
    spec.request.method = Method::pipefusion;
    spec.request.num_pipeline_patch = 2;
    spec.request.warmup_steps = 1;
    spec.parallelism.pp = 2;
    return spec;
  }
  jobs::JobId submit(const wire::JobSpec& spec) {
    auto plan = plan::make_plan(spec::read_model_spec(spec.model), spec.request, spec.parallelism);
    const auto id = table.add(spec, std::move(plan), 0, true, 0).value();
    runner.start_queued();
    return id;
  }
  /// Returns the job's result, byte for byte; or why there is none.
  std::string result(jobs::JobId id) {
    until([&] { return has_ended(table.find(id)->state); });
    const auto& job = *table.find(id);
    if (job.state != JobState::succeeded)
      return job.failure.what + " (" + to_string(job.phase) + ")";
    std::string bytes;
    for (const auto& blob : job.outcome.blobs)
      bytes += *blobs.bytes(blob.id);
    return bytes;
  }

  std::vector<wire::ClockSpan> ran;   // of all tasks that were done
  std::vector<std::string> troubles;  // of tasks that failed, but for a peer's or the epoch's end
  std::vector<std::thread> threads;
};

}  // namespace troupe::test
