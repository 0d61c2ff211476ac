#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/jobs/batching.h"
#include "controller/jobs/replan.h"
#include "tests/controller/job_rooms.h"
#include "tests/controller/sample_model.h"
#include "transport/control/connection.h"
#include "transport/wire/done.h"

namespace troupe::test {

/// A runner with one actor that is played here: it loads when it may, begins jobs, and never
/// finishes a task.
struct RunnerStage : JobRooms, jobs::JobListener {
  std::vector<std::pair<jobs::JobId, jobs::JobId>> failed;  // who has failed, under which number
  std::function<void(const wire::JobProgress&)> on_progress = [](const auto&) {};
  std::unique_ptr<control::Connection> actor;
  control::BlobStore at_actor;
  std::unique_ptr<control::BlobConnection> actor_blobs;
  bool loads = true;
  bool ends = true;  // it answers when a job has ended
  std::vector<wire::Kind> got;

  explicit RunnerStage(double rejoin = 0)
      : JobRooms([this, rejoin](jobs::JobRunner::Tools& tools) {
          tools.options.rejoin_deadline = rejoin;
          fill(tools);
        }) {
    runner.listen(*this);
    members.spawned(members.add("here", "cpu").id, 77, 1);
    server.on_connect([this](const control::PeerInfo& peer) { return members.hello(peer); });
    control::ConnectionOptions options;
    options.endpoint = server.endpoint();
    options.incarnation = 77;
    options.hello.role = PeerRole::actor;
    options.hello.attributes = {{"token", "secret"}};
    actor = std::make_unique<control::Connection>(io, options);
    actor->on_message([this](const wire::Header& header, auto) { play(header); });
    actor->start([](const wire::Welcome&) {},
                 [](const wire::Failure& failure) { FAIL(failure.what); });
    options.endpoint = blob_server.endpoint();
    actor_blobs = std::make_unique<control::BlobConnection>(io, options, at_actor);
    actor_blobs->start();
    REQUIRE(until([this] { return actor->connected() && actor_blobs->connected(); }));
  }

  void progress(const jobs::JobEntry&, const wire::JobProgress& progress) override {
    on_progress(progress);
  }
  void failing(jobs::JobEntry& job) override { failed.emplace_back(job.id, runner.run_of(job.id)); }
  void batch_failing(const jobs::JobEntry& batch, const std::string&) override {
    failed.emplace_back(batch.id, batch.id);
  }

  void fill(jobs::JobRunner::Tools& tools) {
    tools.plan_again = [this](const jobs::JobEntry& job, int actors) {
      const auto fits = [this](const auto& plan) { return !deployments.shortage(plan); };
      return jobs::plan_again(job, sample_model(), actors,
                              plan::machine_here(DeviceKind::cpu, actors, 4),
                              {members.memory_steps(), fits});
    };
    tools.plan_batch = [](const jobs::JobEntry& first, const wire::ImageRequest& request) {
      return plan::make_plan(sample_model(), request, parallelism_of(first));
    };
  }

  void play(const wire::Header& header) {
    got.push_back(header.kind);
    if (header.kind == wire::Kind::load_stage && loads) actor->reply(header, wire::StageLoaded{});
    if (header.kind == wire::Kind::connect_groups) actor->reply(header, wire::GroupsConnected{});
    if (header.kind == wire::Kind::abort_epoch) actor->reply(header, wire::Done{});
    if (header.kind == wire::Kind::end_job && ends) actor->reply(header, wire::ActorJobStats{});
  }

  /// Waits for others that are handed in like this.
  jobs::JobId join_queue(std::size_t prompts, wire::JobSpec spec = {}) {
    spec.request.prompts.assign(prompts, "x");
    spec.may_batch = true;
    auto plan = plan::make_plan(sample_model(), spec.request, spec.parallelism);
    return table.add(spec, std::move(plan), 0, false, 0).value();
  }

  jobs::JobId submit(const std::string& prompt = "x") {
    wire::JobSpec spec;
    spec.request.prompts = {"x"};
    auto plan = plan::make_plan(sample_model(), spec.request, {});
    plan.request.prompts = {prompt};
    const auto id = table.add(spec, std::move(plan), 0, false, 0).value();
    runner.start_queued();
    return id;
  }

  /// The actor says that a task is done and that it left this.
  void done(jobs::JobId id, std::uint32_t task, const wire::BlobRef& blob) {
    const auto epoch = deployments.at(0).back()->epoch;
    wire::TaskDone done;
    done.epoch = epoch;
    done.job = id;
    done.task = task;
    done.blobs = {blob};
    runner.task_done(0, done);
  }

  /// Messages of this kind that the actor has got.
  std::size_t count(wire::Kind kind) const {
    return static_cast<std::size_t>(std::count(got.begin(), got.end(), kind));
  }
  bool reaches(jobs::JobId id, JobState state) {
    return until([&] { return table.find(id)->state == state; });
  }
  bool idle_again() {
    return until([&] { return members.idle().size() == 1; });
  }
};

}  // namespace troupe::test
