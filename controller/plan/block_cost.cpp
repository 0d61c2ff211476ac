#include "controller/plan/block_cost.h"

#include <algorithm>
#include <cmath>

namespace troupe::plan {
namespace {

/// Kernels of one more part of attention: the part, its merge.
constexpr double kOperationsPerPart = 2;
/// How many times faster products of bytes are than float32's (docs/quantization.md).
constexpr double kByteSpeed = 3;

}  // namespace

BlockCost::BlockCost(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
                     const Machine& machine, const Engine& engine, const Ways& ways)
    : model_(model), job_(job), degrees_(degrees), machine_(machine), engine_(engine), ways_(ways) {
  element_ = element_bytes(job.dtype);
  head_share_ = static_cast<double>(heads_of(model.heads, degrees, 0, 0)) / model.heads;
}

double BlockCost::computed(double flops, double elements, double bytes, double speed) const {
  if (flops <= 0) return 0;
  const double reached = elements / (elements + machine_.device.half_speed_elements);
  return std::max(flops / (speed * reached), bytes / machine_.device.bandwidth);
}

double BlockCost::products(double tokens, double weights) const {
  const double elements = tokens * model_.width / degrees_.tp;
  const double weight = job_.weight_dtype == WeightChoice::as_computed ? element_ : 1;
  const double bytes = weight * weights / degrees_.tp + element_ * elements * kActivationsPerToken;
  const double speed = job_.weight_dtype == WeightChoice::int8
                           ? kByteSpeed * machine_.device.float_flops
                           : machine_.flops(job_.dtype);
  return computed(2 * tokens * weights / degrees_.tp, elements, bytes, speed);
}

double BlockCost::plain(double flops, double elements) const {
  return computed(flops, elements, 0, machine_.flops(job_.dtype));
}

double BlockCost::attention(double batch, double queries, double keys) const {
  const double elements = batch * queries * model_.width * head_share_;
  const double bytes = element_ * batch * (2 * queries + 2 * keys) * model_.width * head_share_;
  return computed(4 * elements * keys, elements, bytes,
                  machine_.flops(job_.dtype) * machine_.device.attention_share);
}

double BlockCost::exposed_transfers(double tokens) const {
  const double hidden = tokens * model_.width * element_;
  double seconds = 0;
  if (degrees_.ulysses > 1) {
    const double others = 1.0 - 1.0 / degrees_.ulysses;
    seconds += ways_.ulysses.seconds(3 * hidden * others / degrees_.tp) +
               ways_.ulysses.seconds(hidden * others / degrees_.tp);
  }
  if (degrees_.tp > 1) {
    const double half = hidden * (1.0 - 1.0 / degrees_.tp);
    seconds += model_.sums_per_block * 2 * ways_.tp.seconds(half);
  }
  return seconds;
}

double BlockCost::ring_transfer(double block_tokens) const {
  if (degrees_.ring == 1) return 0;
  const double block = 2 * block_tokens * model_.width * head_share_ * element_;
  return ways_.ring.seconds((degrees_.ring - 1) * block);
}

BlockTime BlockCost::operator()(const MicroRows& rows) const {
  const double columns = job_.columns;
  const double all_text = model_.joint ? model_.text_tokens : 0;
  const double text = rows.with_text ? std::ceil(all_text / degrees_.sp()) : 0;
  const double own = rows.own * columns + text;
  const double block = rows.block * columns + text * degrees_.ulysses;
  const double keys = job_.tokens() + all_text;

  const double attending = attention(rows.batch, block, keys);
  double device = products(rows.batch * own, model_.weights_per_block) + attending;
  if (!model_.joint && model_.text_tokens > 0) {
    const double elements = rows.batch * own * model_.width / degrees_.tp;
    device += computed(4 * elements * model_.text_tokens, elements, 0,
                       machine_.flops(job_.dtype) * machine_.device.attention_share);
  }
  const double kv_bytes = 2 * rows.batch * keys * model_.width * head_share_ * element_;
  if (rows.patched) device += engine_.kv_copies * 2 * kv_bytes / machine_.device.bandwidth;
  // Predicting reads an older K,V, too.
  if (rows.predicts) device += kv_bytes / machine_.device.bandwidth;

  double operations = model_.operations_per_block + kOperationsPerPart * (degrees_.ring - 1);
  if (rows.predicts) operations += 2;
  const double host = operations * machine_.device.launch * engine_.launch_factor;
  BlockTime time;
  time.computing = machine_.device.queues ? std::max(device, host) : device + host;
  time.transferring = exposed_transfers(rows.batch * own);
  const Way& sums = job_.method == Method::distrifusion ? ways_.heads : ways_.stage;
  const int summing = job_.method == Method::distrifusion ? degrees_.ulysses * degrees_.tp
                                                          : degrees_.sp() * degrees_.tp;
  if (rows.predicts && summing > 1) time.transferring += 2 * sums.seconds(rows.batch * 4 * 8);

  const double travelling = ring_transfer(rows.batch * block);
  if (job_.method == Method::distrifusion && rows.patched) {
    time.hidden = travelling;
  } else {
    // What is here already can be attended to meanwhile; a device that waits for its host has time.
    const double here = 1 - (rows.all - rows.block) * columns / keys;
    const double idle = machine_.device.queues ? std::max(0.0, host - device) : 0;
    time.transferring += std::max(0.0, travelling - here * (attending + idle));
  }
  return time;
}

}  // namespace troupe::plan
