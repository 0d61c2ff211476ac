#include "controller/plan/part_sizes.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "controller/plan/cost_model.h"
#include "controller/plan/shape.h"

namespace troupe::plan {
namespace {

constexpr double kSecondsOfPart = 1;
/// Most tasks of a replica's steps: the controller keeps them all.
constexpr int kMostTasks = 1 << 16;

int fitting(double seconds_each, int least, int all) {
  const double fit = kSecondsOfPart / seconds_each;
  if (fit >= all) return all;
  return std::max(least, static_cast<int>(std::bit_floor(static_cast<unsigned>(fit))));
}

double largest_stage(const Plan& plan, const ModelShape& model) {
  const auto costs = block_costs(model, static_cast<double>(plan.token_rows * plan.token_columns));
  double largest = 0;
  for (const auto& stage : plan.stages) {
    largest = std::max(largest, std::accumulate(costs.begin() + stage.first_block,
                                                costs.begin() + stage.last_block, 0.0));
  }
  return largest;
}

}  // namespace

PartSizes part_sizes(const Plan& plan, const spec::ModelSpec& model, const Machine& machine) {
  const auto& degrees = plan.degrees;
  const int pictures = plan.images.front().end - plan.images.front().begin;
  const int items = pictures * plan.branches_per_actor();
  PartSizes sizes{items, pictures};
  const auto dtype = plan.request.dtype;
  if (pictures < 2 || machine.flops(dtype) <= 0) return sizes;
  const auto shape = shape_of(model, plan.request);
  auto job = shape_of(plan);
  job.encodes = false;
  JobCost cost;
  count_vae(cost, shape, job, degrees, plan.vae_degree, machine);
  sizes.pictures = fitting(cost.decode / pictures, 1, pictures);
  if (model.transformer.unet()) return sizes;
  const double speed = shared_by(machine, degrees.world()).flops(dtype) * degrees.sp() * degrees.tp;
  const int steps = std::max(1, plan.synchronous_steps) * degrees.pp;
  const int most_parts = std::max(1, kMostTasks / steps);
  sizes.items = std::max(fitting(largest_stage(plan, shape) / speed, 2, items),
                         (items + most_parts - 1) / most_parts);
  return sizes;
}

}  // namespace troupe::plan
