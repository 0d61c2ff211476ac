#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "base/counted.h"
#include "base/text.h"
#include "controller/deployments/device_fit.h"
#include "controller/deployments/device_kinds.h"
#include "controller/jobs/run.h"

namespace troupe::jobs {

bool JobRunner::all_fit_elsewhere(const cluster::Deployment& deployment) const {
  const auto living = cluster::most_alike(tools_.members, deployment.weight_dtype);
  const auto jobs = jobs_on(deployment);
  return std::all_of(jobs.begin(), jobs.end(), [&](auto id) {
    const auto& job = *tools_.table.find_run(id);
    if (!job.spec.elastic || !tools_.plan_again || living < 1) return false;
    if (job.plan.degrees.world() <= living && !tools_.deployments.shortage(job.plan)) return true;
    try {
      return !tools_.deployments.shortage(tools_.plan_again(job, living));
    } catch (const std::invalid_argument&) {
      return false;
    }
  });
}

void JobRunner::deployment_failed(const cluster::Deployments::Ptr& deployment,
                                  const wire::Failure& failure) {
  const auto& actors = deployment->actor_of_rank;
  const bool place_lost = std::any_of(actors.begin(), actors.end(),
                                      [&](auto id) { return !tools_.members.at(id).lasting(); });
  const auto jobs = jobs_on(*deployment);
  const int survivors = survivors_of(jobs, deployment->weight_dtype);
  for (const JobId id : jobs) {
    Run* run = find(id);
    if (!run || run->deployment != deployment) continue;
    if (run->begun && !interrupt(*run, failure, /*counts=*/true)) continue;
    if (!place_lost || !move_out(*run, survivors)) finish(id, wire::JobState::failed, failure);
  }
  tools_.environment.post([this] { start_queued(); });
}

int JobRunner::survivors_of(const std::vector<JobId>& jobs, WeightChoice weight_dtype) const {
  struct Kind {
    int free = 0;
    int all = 0;
  };
  std::map<DeviceKind, Kind> kinds;
  for (const auto& [id, actor] : tools_.members.all()) {
    const auto kind = actor.device_kind();
    if (!actor.usable() || !cluster::has_products_of(kind, weight_dtype)) continue;
    ++kinds[kind].all;
    kinds[kind].free += std::all_of(actor.jobs.begin(), actor.jobs.end(), [&](auto job) {
      return std::find(jobs.begin(), jobs.end(), job) != jobs.end();
    });
  }
  Kind most;
  for (const auto& [name, kind] : kinds)
    most = {std::max(most.free, kind.free), std::max(most.all, kind.all)};
  return most.free > 0 ? most.free : most.all;
}

bool JobRunner::fit(JobEntry& job, int actors) {
  if (!job.spec.elastic || !tools_.plan_again || actors < 1) return false;
  if (job.plan.degrees.world() <= actors) return true;
  try {
    job.plan = tools_.plan_again(job, actors);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

bool JobRunner::can_ever_fit(JobEntry& job) {
  const auto lack = tools_.deployments.shortage(job.plan);
  if (!lack) return true;
  if (job.spec.elastic && tools_.plan_again) {
    try {
      auto plan = tools_.plan_again(
          job, cluster::most_alike(tools_.members, job.plan.request.weight_dtype));
      if (!tools_.deployments.shortage(plan)) {
        job.plan = std::move(plan);
        return true;
      }
    } catch (const std::invalid_argument&) {
    }
  }
  const wire::Failure failure{
      wire::FailureCode::out_of_memory,
      "rank " + std::to_string(lack->rank) + " needs " + bytes_text(lack->needs) +
          ", and the roomiest actor that is left for it, " + tools_.members.name_of(lack->actor) +
          ", may hold " + bytes_text(lack->limit)};
  if (Run* run = find(job.id)) {
    fail_or_retry(*run, failure);
  } else {
    finish(job.id, wire::JobState::failed, failure);
  }
  return false;
}

bool JobRunner::move_out(Run& run, int survivors) {
  JobEntry& job = entry(run);
  const int before = job.plan.degrees.world();
  if (!fit(job, survivors)) return false;
  tools_.deployments.leave(run.deployment, run.job);
  run.deployment = nullptr;
  if (const int now = job.plan.degrees.world(); now != before) {
    run.warnings.push_back("it goes on with " + counted(now, "actor") + " instead of " +
                           std::to_string(before));
    progress(job, {}, {run.warnings.back()});
  }
  return true;
}

void JobRunner::fail_unplaceable(const std::string& why) {
  auto waiting = tools_.table.queue();
  for (const auto& [id, run] : runs_) {
    if (!run->deployment) waiting.push_back(id);
  }
  for (const JobId id : waiting) {
    JobEntry& job = *tools_.table.find_run(id);
    const int living = cluster::most_alike(tools_.members, job.plan.request.weight_dtype);
    if (job.plan.degrees.world() <= living || fit(job, living)) continue;
    finish(id, wire::JobState::failed, {wire::FailureCode::lost, why});
  }
  tools_.environment.post([this] { start_queued(); });
}

}  // namespace troupe::jobs
