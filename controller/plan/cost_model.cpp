#include "controller/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "controller/plan/block_cost.h"
#include "controller/plan/pipeline_clock.h"

namespace troupe::plan {
namespace {

/// Convolutions reach this share of the speed of matrix products.
constexpr double kConvolutionShare = 0.6;
/// Embedding, projection and the sampler's step.
constexpr double kOperationsAtTheEnds = 12;

/// What one kind of micro-step costs, and how much of it is work and waiting.
struct Micro {
  MicroTimes times;
  double computing = 0;  // at the busiest stage
  double transferring = 0;
};

class Estimate {
 public:
  Estimate(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees, int decoders,
           Machine machine, const Engine& engine)
      : model_(model),
        job_(job),
        degrees_(degrees),
        decoders_(decoders),
        machine_(std::move(machine)),
        engine_(engine),
        block_(model, job, degrees, machine_, engine),
        layout_(layout_of(job.method, job.patches, degrees.ring, degrees.ulysses)),
        images_((job.pictures + degrees.dp - 1) / degrees.dp),
        stages_(stage_sizes(model.layers, degrees.pp, engine)) {}

  JobCost add_up() {
    denoise();
    if (job_.decodes) {
      cost_.text = text();
      cost_.decode = decode();
    }
    return cost_;
  }

 private:
  void denoise() {
    PipelineClock clock(degrees_.pp, layout_.micro_steps());
    const int synchronous = job_.synchronous_steps;
    const int patched = job_.steps - synchronous;
    if (synchronous > 0) {
      const Micro whole = micro_step(whole_rows());
      for (int step = 0; step < synchronous; ++step)
        clock.whole_step(whole.times);
      count(whole, synchronous);
    }
    cost_.synchronous = clock.now();
    if (patched == 0) return;
    std::vector<MicroTimes> patches;
    for (int micro = 0; micro < layout_.micro_steps(); ++micro) {
      const Micro patch = micro_step(patch_rows(micro));
      patches.push_back(patch.times);
      count(patch, patched);
    }
    clock.patch_steps(patches, patched);
    cost_.patched = clock.now() - cost_.synchronous;
  }

  void count(const Micro& micro, int times) {
    cost_.computing += times * micro.computing;
    cost_.transferring += times * micro.transferring;
  }

  MicroRows whole_rows() const {
    MicroRows rows;
    rows.own = layout_.whole[0];
    for (int u = 0; u < degrees_.ulysses; ++u)
      rows.block += layout_.whole[u];
    rows.all = job_.rows();
    rows.with_text = true;
    return rows;
  }

  MicroRows patch_rows(int micro) const {
    MicroRows rows;
    rows.own = layout_.rows(micro, 0);
    for (int sequence = 0; sequence < degrees_.sp(); ++sequence) {
      rows.all += layout_.rows(micro, sequence);
      if (sequence < degrees_.ulysses) rows.block += layout_.rows(micro, sequence);
    }
    const int patches = static_cast<int>(job_.patches.size());
    rows.patched = patches > 1;
    rows.with_text = micro == 0 || engine_.text_with_every_patch;
    const bool all_fresh = job_.method == "pipefusion" && micro + 1 == layout_.micro_steps();
    rows.predicts = job_.predict && patches > 1 && !all_fresh;
    return rows;
  }

  Micro micro_step(const MicroRows& rows) const {
    const BlockTime block = block_(rows);
    const double per_block = block.computing + block.transferring;
    const double tokens =
        rows.own * job_.columns + (rows.with_text && model_.joint ? model_.text_tokens : 0);
    const double ends = kOperationsAtTheEnds * machine_.device.launch * engine_.launch_factor;
    Micro micro;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      const int blocks = stages_[stage];
      double seconds = std::max(blocks * per_block, blocks * block.hidden);
      double exposed = seconds - blocks * block.computing;
      double computing = blocks * block.computing;
      if (stage == 0) computing += ends, seconds += ends;
      if (stage + 1 == stages_.size()) {
        computing += ends, seconds += ends;
        const double gathered = degrees_.cfg > 1 ? block_.ways().cfg.seconds(latents(rows)) : 0;
        exposed += gathered, seconds += gathered;
      }
      if (stages_.size() > 1) seconds += engine_.message_overhead;
      micro.times.compute.push_back(seconds);
      micro.computing = std::max(micro.computing, computing);
      micro.transferring = std::max(micro.transferring, exposed);
    }
    if (stages_.size() > 1) {
      const double hidden = block_.batch() * tokens * model_.width * block_.element();
      micro.times.edge = block_.ways().edge.seconds(hidden);
      micro.times.feedback = block_.ways().feedback.seconds(latents(rows));
    }
    return micro;
  }

  /// Bytes of the float32 latents of own rows.
  double latents(const MicroRows& rows) const {
    return 4.0 * images_ * job_.latent_channels * rows.own * job_.columns * job_.patch_size *
           job_.patch_size;
  }

  double text() const {
    const double tokens =
        static_cast<double>(images_) * (job_.guidance ? 2 : 1) * model_.text_tokens;
    const double encoder = tokens * model_.text_flops / machine_.flops(job_.dtype);
    const double captions =
        stages_[0] * block_.products(model_.text_tokens, model_.caption_weights_per_block);
    return encoder + captions;
  }

  double decode() const {
    const double pixels = job_.tokens() * job_.patch_size * job_.patch_size;
    const double attention = 4 * pixels * pixels * model_.decoder_attention_width;
    const double flops = pixels * model_.decoder_flops + attention;
    const double share = std::ceil(static_cast<double>(job_.rows()) / decoders_) / job_.rows();
    const double halos =
        decoders_ > 1 ? model_.decoder_convolutions * 2 * machine_.inside.latency : 0;
    // Half-precision pictures may be decoded in float32; here they count in their own type.
    return images_ * (flops * share / (machine_.flops(job_.dtype) * kConvolutionShare) + halos +
                      model_.decoder_convolutions * machine_.device.launch);
  }

  const ModelShape& model_;
  const JobShape& job_;
  const mesh::Degrees& degrees_;
  const int decoders_;
  const Machine machine_;
  const Engine& engine_;
  const BlockCost block_;
  const Layout layout_;
  const int images_;
  const std::vector<int> stages_;
  JobCost cost_;
};

}  // namespace

JobCost estimate_cost(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
                      int decoders, const Machine& machine, const Engine& engine) {
  const int patches = std::max<int>(1, static_cast<int>(job.patches.size()));
  const int busy = degrees.world() / degrees.pp * std::min(degrees.pp, patches);
  return Estimate(model, job, degrees, decoders, shared_by(machine, busy), engine).add_up();
}

}  // namespace troupe::plan
