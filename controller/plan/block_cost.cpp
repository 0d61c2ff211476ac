#include "controller/plan/block_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "controller/plan/cost_model.h"
#include "controller/plan/shape.h"

namespace troupe::plan {

namespace {

/// Speed of products of bytes ÷ speed of float32's (docs/quantization.md).
constexpr double kByteSpeed = 3;

}  // namespace

BlockCost::BlockCost(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
                     const Machine& machine, const Engine& engine, const LinkCosts& link_costs)
    : model_(model),
      job_(job),
      degrees_(degrees),
      machine_(machine),
      engine_(engine),
      link_costs_(link_costs) {
  element_ = element_bytes(job.dtype);
  weight_ = job.weight_dtype == WeightChoice::as_computed ? element_ : 1;
  product_speed_ = job.weight_dtype == WeightChoice::int8 ? kByteSpeed * machine.device.float_flops
                                                          : machine.flops(job.dtype);
  const double head = model.width / model.heads;
  if (const int step = machine.device.head_step; step > 0 && model.levels.empty())
    padding_ = std::ceil(head / step) * step / head;
  head_share_ = static_cast<double>(heads_of(model.heads, degrees, 0, 0)) / model.heads;
}

double BlockCost::computed(double flops, double elements, double bytes, double speed) const {
  if (flops <= 0) return 0;
  const double reached = elements / (elements + machine_.device.half_speed_elements);
  return std::max(flops / (speed * reached), bytes / machine_.device.bandwidth);
}

double BlockCost::products(double tokens, double weights) const {
  const double elements = tokens * model_.width / degrees_.tp;
  // A CPU's speed was measured with what stands between the products.
  const double beside = machine_.device.queues ? 0 : element_ * elements * kActivationsPerToken;
  const double bytes = weight_ * weights / degrees_.tp + beside;
  return computed(2 * tokens * weights / degrees_.tp, elements, bytes, product_speed_);
}

double BlockCost::block_products(double tokens) const {
  if (model_.levels.empty()) return products(tokens, model_.weights_per_block);
  double seconds = 0;
  for (const auto& level : model_.levels) {
    const double own = tokens * level.share;
    seconds += computed(2 * own * level.weights, own * level.width, weight_ * level.weights,
                        product_speed_);
  }
  return seconds;
}

double BlockCost::elementwise(double tokens) const {
  if (!machine_.device.queues) return 0;
  const double bytes = element_ * tokens * model_.width * model_.elementwise_per_block;
  return bytes / machine_.device.bandwidth;
}

double BlockCost::copied() const {
  if (job_.offload == OffloadChoice::none || machine_.device.host_bandwidth == 0) return 0;
  const double products = model_.weights_per_block;
  const double bytes = weight_ * products / degrees_.tp +
                       element_ * std::max(model_.stored_per_block - products, 0.0);
  return bytes / machine_.device.host_bandwidth;
}

double BlockCost::plain(double flops, double elements) const {
  return computed(flops, elements, 0, machine_.flops(job_.dtype));
}

double BlockCost::attention(double batch, double queries, double keys, double width) const {
  const double elements = batch * queries * width * head_share_;
  const double bytes = element_ * batch * (2 * queries + 2 * keys) * width * head_share_;
  return computed(4 * elements * keys * padding_, elements, bytes,
                  machine_.flops(job_.dtype) * machine_.device.attention_share);
}

double BlockCost::attentions(double batch, double queries, double keys) const {
  if (model_.levels.empty()) return attention(batch, queries, keys, model_.width);
  double seconds = 0;
  for (const auto& level : model_.levels) {
    seconds +=
        level.attentions * attention(batch, queries * level.share, keys * level.share, level.width);
  }
  return seconds;
}

double BlockCost::text_attentions(double tokens) const {
  if (model_.joint || model_.text_tokens == 0) return 0;
  const auto of = [&](double own, double width) {
    const double elements = own * width / degrees_.tp;
    return computed(4 * elements * model_.text_tokens * padding_, elements, 0,
                    machine_.flops(job_.dtype) * machine_.device.attention_share);
  };
  if (model_.levels.empty()) return of(tokens, model_.width);
  double seconds = 0;
  for (const auto& level : model_.levels)
    seconds += level.attentions * of(tokens * level.share, level.width);
  return seconds;
}

double BlockCost::exposed_transfers(double tokens) const {
  const double hidden = tokens * model_.width * element_;
  double seconds = 0;
  if (degrees_.ulysses > 1) {
    const double others = 1.0 - 1.0 / degrees_.ulysses;
    seconds += link_costs_.ulysses.seconds(3 * hidden * others / degrees_.tp) +
               link_costs_.ulysses.seconds(hidden * others / degrees_.tp);
  }
  if (degrees_.tp > 1) {
    const double half = hidden * (1.0 - 1.0 / degrees_.tp);
    seconds += model_.sums_per_block * 2 * link_costs_.tp.seconds(half);
  }
  return seconds;
}

double BlockCost::calls(bool patched) const {
  double calls = 0;
  if (degrees_.ulysses > 1) calls += 4;  // q, k, v and the output
  if (degrees_.tp > 1) calls += model_.sums_per_block;
  const bool gathered = job_.method == Method::distrifusion && patched;
  if (degrees_.ring > 1 && !(gathered && job_.alone)) calls += gathered ? 1 : degrees_.ring - 1;
  return calls;
}

double BlockCost::ring_transfer(double batch, double block_tokens) const {
  if (degrees_.ring == 1) return 0;
  const double values = model_.levels.empty() ? 2 * block_tokens * model_.width * head_share_
                                              : block_tokens * model_.told_per_position +
                                                    job_.columns * model_.told_per_column;
  return link_costs_.ring.seconds((degrees_.ring - 1) * batch * values * element_);
}

BlockTime BlockCost::operator()(const MicroRows& rows) const {
  const double columns = job_.columns;
  const double all_text = model_.joint ? model_.text_tokens : 0;
  const double text = rows.with_text ? std::ceil(all_text / degrees_.sp()) : 0;
  const double own = rows.own * columns + text;
  const double block = rows.block * columns + text * degrees_.ulysses;
  const bool alone = job_.alone && rows.patched;
  const double keys =
      alone ? job_.tokens() / static_cast<double>(job_.patches.size()) : job_.tokens() + all_text;

  const double attending = attentions(rows.batch, block, keys);
  double device = block_products(rows.batch * own) + attending + elementwise(rows.batch * own) +
                  text_attentions(rows.batch * own);
  const double kv_bytes = 2 * rows.batch * keys * model_.width * head_share_ * element_;
  if (rows.patched) device += engine_.kv_copies * 2 * kv_bytes / machine_.device.bandwidth;
  // Predicting reads an older K,V, too.
  if (rows.predicts) device += kv_bytes / machine_.device.bandwidth;

  // DistriFusion attends to all K,V at once, ring to one part after the other.
  const bool gathered = job_.method == Method::distrifusion && rows.patched;
  const int parts = gathered ? 1 : degrees_.ring;
  double operations = model_.operations_per_block + engine_.operations_per_part * (parts - 1);
  if (rows.predicts) operations += 2;
  const double host = operations * machine_.device.launch * engine_.launch_factor +
                      calls(rows.patched) * engine_.call_overhead;
  BlockTime time;
  time.computing = machine_.device.queues ? std::max(device, host) : device + host;
  double exposed = exposed_transfers(rows.batch * own);
  const LinkCost& sums =
      job_.method == Method::distrifusion ? link_costs_.heads : link_costs_.stage;
  const int summing = job_.method == Method::distrifusion ? degrees_.ulysses * degrees_.tp
                                                          : degrees_.sp() * degrees_.tp;
  if (rows.predicts && summing > 1) exposed += 2 * sums.seconds(rows.batch * 4 * 8);

  const double travelling = ring_transfer(rows.batch, block);
  if (gathered && !job_.tells) {
    // Each patch by itself.
  } else if (gathered && engine_.overlaps) {
    time.hidden = travelling;
  } else if (!model_.levels.empty() && degrees_.ring > 1) {
    exposed += travelling + (model_.telling_layers - 1) * link_costs_.ring.latency;
  } else if (!engine_.overlaps) {
    exposed += travelling;
  } else {
    // What is here already can be attended to meanwhile.
    const double here = 1 - (rows.all - rows.block) * columns / keys;
    exposed += std::max(0.0, travelling - here * attending);
  }
  // A device that waits for its host has time.
  const double idle = machine_.device.queues ? std::max(0.0, host - device) : 0;
  time.transferring = std::max(0.0, exposed - idle);
  return time;
}

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
