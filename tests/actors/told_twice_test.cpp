// Everything that a controller tells two actors comes twice, at once or while they are at work: as
// if the numbers of the link had let it through. The rooms of the controller are real, and so are
// the actors.
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "actors/actor_process.h"
#include "controller/app/live_environment.h"
#include "controller/jobs/job_runner.h"
#include "tests/controller/doors.h"
#include "tests/support/doctest.h"
#include "transport/wire/done.h"

using namespace troupe;
using wire::JobState;

namespace {

const std::string kTinyPixArt = TROUPE_SOURCE_DIR "/tests/fixtures/tiny-pixart";

/// Says all that it says `copies` times.
class Echoing final : public cluster::Environment {
 public:
  Echoing(cluster::Environment& live, int copies) : live_(live), copies_(copies) {}

  double now() const override { return live_.now(); }
  std::uint64_t random() override { return live_.random(); }
  void after(double seconds, std::function<void()> action) override {
    live_.after(seconds, std::move(action));
  }
  bool send_frame(control::PeerId peer, std::string frame) override {
    again([this, peer, frame] { live_.send_frame(peer, frame); });
    return live_.send_frame(peer, std::move(frame));
  }
  void request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                     control::ReplyHandler handler) override {
    const auto kind = wire::decode_header(wire::as_bytes(frame)).kind;
    const auto unheard = [this, kind](const control::Reply& reply) {
      if (!reply)
        failures.push_back(std::to_string(static_cast<int>(kind)) + " " + reply.failure().what);
    };
    // Groups to one of the two only: if it connected anew, it would find nobody.
    if (kind != wire::Kind::connect_groups || peer % 2 == 0) {
      again([this, peer, frame, deadline, unheard] {
        live_.request_frame(peer, frame, deadline, unheard);
      });
    }
    live_.request_frame(peer, std::move(frame), deadline, std::move(handler));
  }
  void drop(control::PeerId peer, const std::string& why) override { live_.drop(peer, why); }
  std::optional<double> last_progress(control::PeerId peer) const override {
    return live_.last_progress(peer);
  }
  void fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                  control::Milliseconds deadline, control::BlobHandler handler) override {
    live_.fetch_blob(incarnation, blob, deadline, std::move(handler));
  }
  control::BlobId keep_blob(control::BlobBytes bytes) override {
    return live_.keep_blob(std::move(bytes));
  }
  void drop_blob(control::BlobId id) override { live_.drop_blob(id); }
  std::uint32_t spawn(const cluster::Actor&, std::uint64_t) override { return 0; }
  void kill(cluster::ActorId, const std::string&) override {}

  std::vector<std::string> failures;  // that the second ones were answered with
  std::size_t repeated = 0;

 private:
  /// Every second time when something else has been said and done.
  void again(const std::function<void()>& say) {
    for (int copy = 1; copy < copies_; ++copy) {
      ++repeated;
      live_.after(repeated % 2 ? 0 : 0.02 * static_cast<double>(random_() % 8), say);
    }
  }

  cluster::Environment& live_;
  int copies_;
  std::mt19937 random_{7};
};

/// The rooms of a controller with two real actors, which run on threads of this process.
struct ToldStage : test::Doors {
  explicit ToldStage(int copies) : environment(live, copies) {
    server.on_connect([this](const control::PeerInfo& peer) { return members.hello(peer); });
    server.on_ready([this](control::PeerId peer) {
      deployments.actor_ready(members.by_peer(peer)->id);
      runner.start_queued();
    });
    server.on_message([this](control::PeerId peer, const wire::Header& header,
                             std::span<const std::byte> payload) {
      const auto id = members.by_peer(peer)->id;
      if (header.kind == wire::Kind::task_done)
        runner.task_done(id, wire::decode<wire::TaskDone>(payload));
      if (header.kind != wire::Kind::task_failed) return;
      const auto failed = wire::decode<wire::TaskFailed>(payload);
      // An operation that was under way when its epoch ended is no fault of these messages.
      if (!failed.collateral) told.push_back(failed.failure.what);
      runner.task_failed(id, failed);
    });
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t incarnation = 77 + i;
      members.spawned(members.add("here", "cpu").id, incarnation, 1);
      actors.emplace_back([this, i, incarnation] {
        actors::ActorProcess actor({.control_endpoint = server.endpoint(),
                                    .blob_endpoint = blob_server.endpoint(),
                                    .id = static_cast<std::uint32_t>(i),
                                    .incarnation = incarnation,
                                    .token = "secret"});
        actor.run();
      });
    }
    REQUIRE(until([this] { return members.ready_count() == 2; }));
  }
  ~ToldStage() {
    for (const auto& [id, actor] : members.all())
      server.send(actor.peer, wire::Shutdown{});
    until([this] { return server.peers() == 0; });
    for (auto& actor : actors)
      actor.join();
  }

  jobs::JobId submit(std::uint64_t seed) {
    wire::JobSpec spec;
    spec.model = kTinyPixArt;
    spec.request.prompts = {"a red circle"};
    spec.request.steps = 4;
    spec.request.seed = seed;
    spec.request.want_latents = true;
    spec.request.method = Method::pipefusion;
    spec.request.num_pipeline_patch = 2;
    spec.request.warmup_steps = 1;
    spec.parallelism.pp = 2;
    auto plan = plan::make_plan(spec::read_model_spec(kTinyPixArt), spec.request, spec.parallelism);
    const auto id = table.add(spec, std::move(plan), 0, true, 0).value();
    runner.start_queued();
    return id;
  }
  /// What the job left, byte for byte; or why it left nothing.
  std::string result(jobs::JobId id) {
    until([&] { return wire::is_terminal(table.find(id)->state); });
    const auto& job = *table.find(id);
    if (job.state != JobState::succeeded) return job.failure.what + " (" + job.phase + ")";
    std::string bytes;
    for (const auto& blob : job.blobs)
      if (blob.name == "latents") bytes += *blobs.bytes(blob.id);
    return bytes;
  }

  cluster::Members members{"secret"};
  jobs::JobTable table{8, 8};
  cluster::LiveEnvironment live{io, server, blob_server, blobs, {}};
  Echoing environment;
  cluster::Deployments deployments{
      environment,
      members,
      {.on_ready = [this](const auto& deployment) { runner.deployment_ready(deployment); },
       .on_failed = [this](const auto& deployment,
                           const auto& failure) { runner.deployment_failed(deployment, failure); },
       .on_free = [this] { runner.start_queued(); },
       .on_stuck = [](cluster::ActorId) { FAIL("an actor is stuck"); }}};
  jobs::JobRunner runner{{.environment = environment,
                          .members = members,
                          .deployments = deployments,
                          .table = table,
                          .on_progress = [](const auto&, const auto&) {},
                          .on_finished = [](const auto&) {}}};
  std::vector<std::string> told;
  std::vector<std::thread> actors;
};

}  // namespace

TEST_CASE(
    "what a controller says twice, a stage actor does once: loads, groups, jobs, tasks, ends") {
  std::vector<std::string> once;
  for (const int copies : {1, 3}) {
    CAPTURE(copies);
    ToldStage stage(copies);
    // Two jobs side by side, then one on what is loaded, then one whose epoch ends in its midst.
    const auto first = stage.submit(1), second = stage.submit(2);
    std::vector<std::string> results{stage.result(first), stage.result(second)};
    results.push_back(stage.result(stage.submit(3)));
    CHECK(stage.environment.failures == std::vector<std::string>{});
    const auto fourth = stage.submit(4);
    REQUIRE(stage.until([&] { return stage.table.find(fourth)->phase == "denoising"; }));
    const auto deployment = stage.deployments.in_use(0);
    REQUIRE(deployment);
    const auto epoch = deployment->epoch;
    stage.runner.interrupt_jobs(deployment, "a test");
    REQUIRE(stage.until([&] { return wire::is_terminal(stage.table.find(fourth)->state); }));
    CHECK(stage.table.find(fourth)->state == JobState::succeeded);
    CHECK(deployment->epoch == epoch + 1);  // no second attempt was needed
    results.push_back(stage.result(stage.submit(1)));
    CHECK(results.front() == results.back());
    for (const auto& result : results)
      CHECK(result.size() > 1000);
    CHECK(stage.told == std::vector<std::string>{});
    CHECK((stage.environment.repeated > 100) == (copies > 1));
    if (copies == 1) once = results;
    CHECK(results == once);
  }
}
