#include "controller/service/job_planner.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>
#include <memory>
#include <tuple>

#include "base/format.h"
#include "controller/deployments/device_kinds.h"
#include "controller/deployments/memory_room.h"
#include "controller/jobs/replan.h"
#include "controller/plan/planner.h"
#include "controller/plan/request_rules.h"
#include "controller/plan/staleness.h"
#include "controller/service/tools.h"

namespace troupe::service {
namespace {

/// Plans that are made of a job whose cluster changes again and again.
constexpr int kMostPlans = 3;

void set_plan(PlannedJob& planned, const PlanInput& input) {
  const auto& model = *input.reading.model;
  const auto& [request, machine] = std::tie(input.job.request, input.machine);
  const auto fits = [&](const plan::Plan& other) {
    return !cluster::shortage(input.capacity, other);
  };
  plan::check(request, input.job.parallelism);
  planned.parallelism = input.job.parallelism;
  if (input.job.parallelism.automatic)
    planned.parallelism =
        jobs::automatic_within(model, request, input.actors, machine, {input.memory_steps, fits});
  auto& plan = planned.plan = plan::make_plan(model, request, planned.parallelism, machine);
  if (input.job.parallelism.automatic) {
    const auto seconds = plan::judge(planned.parallelism, plan, model, machine).cost.total();
    const auto exact = plan::exact_instead(model, request, plan, seconds, input.actors, machine);
    if (!exact.empty()) plan.warnings.push_back(exact);
  }
  plan.lora_fingerprints = input.reading.lora_fingerprints;
  plan.controlnet_fingerprints = input.reading.controlnet_fingerprints;
  if (planned.parallelism.stages.empty())
    jobs::reuse_stages(plan, model, machine, input.splits, input.capacity);
  if (plan.degrees.world() > input.actors) return;
  planned.shortage = cluster::shortage(input.capacity, plan);
  if (!planned.shortage) return;
  auto job = input.job;
  job.parallelism = planned.parallelism;
  planned.remedy = cluster::memory_remedy(model, job, input.actors, fits, {}, {}, machine);
}

}  // namespace

PlannedJob plan_job(const PlanInput& input) {
  PlannedJob planned;
  try {
    set_plan(planned, input);
  } catch (const std::exception& error) {
    planned.failure = {wire::FailureCode::bad_request, error.what(), wire::field_of(error)};
  }
  return planned;
}

JobPlanner::JobPlanner(const ClusterFacts& facts, const Tools& tools)
    : facts_(facts),
      tools_(tools),
      make_(tools.plan_job ? tools.plan_job : plan_job),
      thread_([&io = tools.io](SideThread::OnLoop action) {
        boost::asio::post(io, std::move(action));
      }) {}

void JobPlanner::plan(Asked asked) {
  queue_.push_back({std::move(asked)});
  begin_next();
}

bool JobPlanner::holds(const plan::Plan& plan) const {
  return plan.degrees.world() <= cluster::most_alike(tools_.members, plan.request.weight_dtype) &&
         !tools_.deployments.shortage(plan);
}

void JobPlanner::begin_next() {
  while (!busy_ && !queue_.empty()) {
    auto attempt = std::move(queue_.front());
    queue_.pop_front();
    if (auto why = attempt.asked.bar()) {
      attempt.asked.handler({.failure = std::move(why)});
    } else {
      begin(std::move(attempt));
    }
  }
}

PlanInput JobPlanner::input_of(const Asked& asked) const {
  const auto& [job, reading] = std::tie(asked.job, asked.reading);
  return {.job = job,
          .reading = reading,
          .machine = tools_.machine_for(facts_, job.request),
          .actors = std::max(1, cluster::most_alike(tools_.members, job.request.weight_dtype)),
          .memory_steps = tools_.members.memory_steps(),
          .capacity = cluster::capacity_of(tools_.members),
          .splits = jobs::known_splits(
              jobs::model_of(job.model, reading.fingerprint, job.request, reading.lora_fingerprints,
                             reading.controlnet_fingerprints),
              {tools_.members, tools_.deployments, tools_.table})};
}

void JobPlanner::begin(Attempt attempt) {
  busy_ = true;
  const auto input = std::make_shared<const PlanInput>(input_of(attempt.asked));
  const auto planned = std::make_shared<PlannedJob>();
  const auto own = std::make_shared<Attempt>(std::move(attempt));
  thread_.post(
      [make = make_, input, planned, answer = SideThread::OnLoop([this, own, input, planned] {
                                       busy_ = false;
                                       finish(std::move(*own), *input, std::move(*planned));
                                       begin_next();
                                     })]() mutable -> SideThread::OnLoop {
        *planned = make(*input);
        return std::move(answer);
      });
}

void JobPlanner::finish(Attempt attempt, const PlanInput& input, PlannedJob planned) {
  const auto& asked = attempt.asked;
  if (auto why = asked.bar()) return asked.handler({.failure = std::move(why)});
  const auto is_same = [&] {
    const auto now = cluster::most_alike(tools_.members, asked.job.request.weight_dtype);
    return std::max(1, now) == input.actors &&
           cluster::capacity_of(tools_.members) == input.capacity;
  };
  const bool last = ++attempt.number == kMostPlans;
  const bool fits_now = !planned.failure && holds(planned.plan);
  if (fits_now) planned.shortage.reset();  // of the actors that were there when it was planned
  if (!asked.must_fit || fits_now || (planned.failure && last) || is_same())
    return asked.handler(std::move(planned));
  if (!last) return queue_.push_front(std::move(attempt));
  asked.handler(
      {.failure = wire::Failure{
           wire::FailureCode::overloaded,
           fmt::format("the cluster's actors changed each of the {} times that the job was "
                       "planned: try again later",
                       kMostPlans)}});
}

}  // namespace troupe::service
