#include "controller/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "controller/plan/block_cost.h"
#include "controller/plan/layout.h"
#include "models/spec/transformer_facts.h"

namespace troupe::plan {

namespace {

/// Number of steps that are played; a pipeline of so many has settled into its pace, which the last
/// of them show. Of many patches fewer steps are enough.
constexpr int kPlayed = 64;
constexpr int kPlayedAtLeast = 4;
constexpr int kPatchesPlayed = 2048;

}  // namespace

PipelineClock::PipelineClock(int stages, int patches)
    : stage_free_(stages, 0), edge_free_(stages, 0), back_(patches, 0) {}

double PipelineClock::run(const MicroTimes& times, double ready, bool returns) {
  const std::size_t stages = stage_free_.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    ready = std::max(ready, stage_free_[stage]) + times.compute[stage];
    stage_free_[stage] = ready;
    if (stages == 1) continue;
    if (stage + 1 == stages) end_ = std::max(end_, ready);
    if (stage + 1 == stages && !returns) break;
    const double carried = stage + 1 == stages ? times.feedback : times.edge;
    ready = std::max(ready, edge_free_[stage]) + carried;
    edge_free_[stage] = ready;
  }
  if (stages == 1) end_ = std::max(end_, ready);
  return ready;
}

void PipelineClock::whole_steps(const std::vector<MicroTimes>& parts, int count) {
  if (count == 0) return;
  const double ready = *std::max_element(back_.begin(), back_.end());
  double back = ready;
  for (std::size_t part = 0; part < parts.size(); ++part)
    back = run(parts[part], ready, part + 1 == parts.size());
  std::fill(back_.begin(), back_.end(), back);
  // All is at rest between two of them, so that each takes as long as the first.
  shift((count - 1) * (back - ready));
}

void PipelineClock::patch_step(const std::vector<MicroTimes>& patches) {
  // Stage by stage: patches wait for each other there, which is shorter than a patch's way.
  const std::size_t stages = stage_free_.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const auto carried = stage + 1 == stages ? &MicroTimes::feedback : &MicroTimes::edge;
    double stage_free = stage_free_[stage], edge_free = edge_free_[stage];
    for (std::size_t patch = 0; patch < patches.size(); ++patch) {
      const auto& times = patches[patch];
      const double ready = back_[patch];
      stage_free = std::max(ready, stage_free) + times.compute[stage];
      edge_free = std::max(stage_free, edge_free) + times.*carried;
      back_[patch] = stages == 1 ? stage_free : edge_free;
    }
    stage_free_[stage] = stage_free, edge_free_[stage] = edge_free;
  }
  end_ = std::max(end_, stage_free_.back());
}

void PipelineClock::patch_steps(const std::vector<MicroTimes>& patches, int count) {
  const int fair = kPatchesPlayed / static_cast<int>(patches.size());
  const int played = std::min(count, std::clamp(fair, kPlayedAtLeast, kPlayed));
  const int shown = std::max(1, played / 4);
  double before = end_;
  for (int step = 0; step < played; ++step) {
    if (step == played - shown) before = end_;
    patch_step(patches);
  }
  if (count > played) shift((count - played) * (end_ - before) / shown);
}

void PipelineClock::shift(double seconds) {
  for (auto* times : {&stage_free_, &edge_free_, &back_}) {
    for (double& time : *times)
      time += seconds;
  }
  end_ += seconds;
}

namespace {

/// Share of the speed of matrix products that convolutions reach.
constexpr double kConvolutionShare = 0.6;

/// Number of blocks that a stage with offload keeps: with no more it keeps all of them, with more
/// the kept blocks change.
constexpr double kKeptBlocks = 2;

/// Costs of one kind of micro-step, and how much of it is work and waiting.
struct Micro {
  MicroTimes times;
  double computing = 0;  // at the busiest stage
  double transferring = 0;
};

int images_of(const JobShape& job, const mesh::Degrees& degrees) {
  return (job.pictures + degrees.dp - 1) / degrees.dp;
}

/// Number of actors that compute at once, on average: filling and draining leave stages idle.
double busy_in_whole_steps(const mesh::Degrees& degrees, int parts) {
  const double stages = static_cast<double>(parts) * degrees.pp / (parts + degrees.pp - 1);
  return degrees.world() / degrees.pp * stages;
}

double busy_in_patches(const mesh::Degrees& degrees, int patches) {
  return degrees.world() / degrees.pp * std::min(degrees.pp, patches);
}

/// One phase of denoising: its blocks, and the micro-steps made of them.
class Phase {
 public:
  Phase(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees, Machine machine,
        const Engine& engine, const LinkCosts& link_costs, const std::vector<double>& stages,
        double edge_states)
      : model_(model),
        job_(job),
        degrees_(degrees),
        machine_(std::move(machine)),
        engine_(engine),
        link_costs_(link_costs),
        stages_(stages),
        edge_states_(edge_states),
        block_(model, job, degrees, machine_, engine, link_costs) {}

  /// Costs of a micro-step of these rows. `steps_latents`: the last stage has a prediction of
  /// `images` pictures then.
  Micro operator()(const MicroRows& rows, double images, bool steps_latents) const {
    const BlockTime block = block_(rows);
    const double per_block = block.computing + block.transferring;
    const double launches =
        engine_.operations_at_an_end * machine_.device.launch * engine_.launch_factor;
    const double tokens = rows.batch * rows.own * job_.columns;
    const auto end = [&](double flops) {
      return launches + block_.plain(tokens * flops, tokens * model_.width);
    };
    // float32 latents of the own rows
    const double latents = 4.0 * images * job_.latent_channels * rows.own * job_.columns *
                           job_.patch_size * job_.patch_size;
    Micro micro;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      const double blocks = stages_[stage];
      double seconds = std::max(blocks * per_block, blocks * block.hidden);
      double exposed = seconds - blocks * block.computing;
      // A GPU copies beside what it computes. A CPU's threads do both, so one waits for the other.
      if (const double copied = blocks * block_.copied(); blocks > kKeptBlocks && copied > 0)
        seconds = machine_.device.queues ? std::max(seconds, copied) : seconds + copied;
      double computing = blocks * block.computing;
      if (stage == 0) {
        const double embedding = end(model_.embedding_flops);
        computing += embedding, seconds += embedding;
      }
      if (stage + 1 == stages_.size()) {
        const double projection = end(model_.projection_flops);
        computing += projection, seconds += projection;
        const bool gathers = degrees_.cfg > 1 && steps_latents;
        const double gathered = gathers ? link_costs_.cfg.seconds(latents) : 0;
        exposed += gathered, seconds += gathered;
      }
      if (stages_.size() > 1) seconds += engine_.message_overhead;
      micro.times.compute.push_back(seconds);
      micro.computing = std::max(micro.computing, computing);
      micro.transferring = std::max(micro.transferring, exposed);
    }
    if (stages_.size() > 1) {
      const bool text = rows.with_text && model_.joint;
      const double hidden = tokens + (text ? rows.batch * model_.text_tokens : 0);
      micro.times.edge =
          link_costs_.edge.seconds(hidden * edge_states_ * model_.width * block_.element());
      micro.times.feedback = link_costs_.feedback.seconds(latents);
    }
    return micro;
  }

  /// Seconds of the caption's K,V for a stage's blocks.
  double captions(double blocks, double tokens) const {
    return blocks * block_.products(tokens, model_.caption_weights_per_block);
  }

 private:
  const ModelShape& model_;
  const JobShape& job_;
  const mesh::Degrees& degrees_;
  const Machine machine_;
  const Engine& engine_;
  const LinkCosts& link_costs_;
  const std::vector<double>& stages_;
  const double edge_states_;  // hidden states that cross the widest edge, in widths of a token
  const BlockCost block_;
};

class Estimate {
 public:
  Estimate(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
           const Machine& machine, const Engine& engine, const std::vector<int>& stages)
      : model_(model),
        job_(job),
        degrees_(degrees),
        machine_(machine),
        engine_(engine),
        rows_(lead_rows(job.method, job.patches, degrees.ring, degrees.ulysses)),
        images_(images_of(job, degrees)),
        batch_(images_ * (job.guidance && degrees.cfg == 1 ? 2 : 1)),
        parts_(batch_parts(batch_, engine.parts_of_batch ? degrees.pp : 1,
                           engine.parts_of_batch && job.most_items > 0 ? job.most_items : batch_)),
        sizes_(sizes_of_stages(stages)),
        stages_(stage_weights(model_, job_.tokens(), sizes_, rates_of(machine_, job_.dtype))),
        link_costs_(link_costs_of(degrees, machine)) {}

  JobCost add_up() {
    PipelineClock clock(degrees_.pp, static_cast<int>(rows_.size()));
    whole_steps(clock);
    cost_.synchronous = clock.now();
    if (job_.steps > job_.synchronous_steps) {
      patch_steps(clock);
      cost_.patched = clock.now() - cost_.synchronous;
    }
    return cost_;
  }

 private:
  /// Returns the sizes of the stages in mean blocks.
  std::vector<int> sizes_of_stages(const std::vector<int>& listed) const {
    if (!listed.empty()) return listed;
    return stage_sizes(model_, job_, degrees_.pp, engine_, rates_of(machine_, job_.dtype));
  }

  /// Returns the hidden states that the widest edge between stages carries: the stage's own, and
  /// those of its blocks that the next stage takes up. Those that later stages take up go by edges
  /// of their own, and are there in time.
  double states_of_widest_edge() const {
    std::int64_t most = 0;
    int first = 0;
    for (std::size_t stage = 0; stage + 1 < sizes_.size(); ++stage) {
      const int last = first + sizes_[stage], end = last + sizes_[stage + 1];
      most = std::max(most, spec::count_skip_connections(model_.skip_from, first, last, last, end));
      first = last;
    }
    return static_cast<double>(1 + most);
  }

  Phase phase(double busy) const {
    return {model_,  job_,        degrees_, shared_by(machine_, busy),
            engine_, link_costs_, stages_,  states_of_widest_edge()};
  }

  void whole_steps(PipelineClock& clock) {
    const int steps = job_.synchronous_steps;
    const auto of = phase(busy_in_whole_steps(degrees_, static_cast<int>(parts_.size())));
    MicroRows rows;
    for (const auto& micro : rows_)
      rows.own += micro.own, rows.block += micro.block;
    rows.all = job_.rows();
    rows.with_text = true;
    rows.batch = batch_;
    if (job_.decodes) cost_.text = of.captions(stages_[0], batch_ * model_.text_tokens);
    if (steps == 0) return;
    std::vector<MicroTimes> parts;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      rows.batch = parts_[part].end - parts_[part].begin;
      const Micro micro = of(rows, images_, part + 1 == parts_.size());
      parts.push_back(micro.times);
      count(micro, steps);
    }
    clock.whole_steps(parts, steps);
  }

  void patch_steps(PipelineClock& clock) {
    const int steps = job_.steps - job_.synchronous_steps;
    const auto of = phase(busy_in_patches(degrees_, static_cast<int>(job_.patches.size())));
    std::vector<std::pair<MicroRows, Micro>> known;  // few sizes of patches, each worked out once
    std::vector<MicroTimes> patches;
    for (std::size_t index = 0; index < rows_.size(); ++index) {
      const auto rows = patch_rows(index);
      auto found = std::find_if(known.begin(), known.end(),
                                [&](const auto& entry) { return entry.first == rows; });
      if (found == known.end()) found = known.insert(known.end(), {rows, of(rows, images_, true)});
      patches.push_back(found->second.times);
      count(found->second, steps);
    }
    clock.patch_steps(patches, steps);
  }

  void count(const Micro& micro, int times) {
    cost_.computing += times * micro.computing;
    cost_.transferring += times * micro.transferring;
  }

  MicroRows patch_rows(std::size_t micro) const {
    MicroRows rows;
    rows.batch = batch_;
    rows.own = rows_[micro].own;
    rows.block = rows_[micro].block;
    rows.all = rows_[micro].all;
    rows.patched = job_.patches.size() > 1;
    rows.with_text = micro == 0 || engine_.text_with_every_patch;
    const bool all_fresh = job_.method == Method::pipefusion && micro + 1 == rows_.size();
    rows.predicts = job_.predict && rows.patched && !all_fresh;
    return rows;
  }

  const ModelShape& model_;
  const JobShape& job_;
  const mesh::Degrees& degrees_;
  const Machine& machine_;
  const Engine& engine_;
  const std::vector<LeadRows> rows_;
  const int images_;
  const int batch_;
  const std::vector<wire::RowRange> parts_;
  const std::vector<int> sizes_;  // of the stages, in blocks
  const std::vector<double> stages_;
  const LinkCosts link_costs_;
  JobCost cost_;
};

/// Returns the FLOPs of so many latent pixels of one picture through one half of the autoencoder.
double coded_flops(const ModelShape& model, double pixels, double flops_per_pixel) {
  return pixels * flops_per_pixel + 4 * pixels * pixels * model.vae_attention_width;
}

/// Returns the seconds in which one actor encodes the pictures to edit.
double edited_seconds(const ModelShape& model, const JobShape& job, const Machine& machine) {
  double seconds = model.vision_flops / machine.flops(job.dtype);
  for (const double pixels : model.edited_pixels)
    seconds += coded_flops(model, pixels, model.encoder_flops) /
                   (machine.flops(job.dtype) * kConvolutionShare) +
               model.encoder_convolutions * machine.device.launch;
  return seconds;
}

/// Returns the seconds of one picture through one half of the autoencoder.
double vae_seconds(const ModelShape& model, const JobShape& job, int actors, const Machine& machine,
                   double flops_per_pixel, int convolutions) {
  const double flops =
      coded_flops(model, job.tokens() * job.patch_size * job.patch_size, flops_per_pixel);
  const double share = std::ceil(static_cast<double>(job.rows()) / actors) / job.rows();
  const double halos = actors > 1 ? convolutions * 2 * machine.inside.latency : 0;
  // Half-precision pictures may be coded in float32; here they count in their own type.
  return flops * share / (machine.flops(job.dtype) * kConvolutionShare) + halos +
         convolutions * machine.device.launch;
}

}  // namespace

void count_vae(JobCost& cost, const ModelShape& model, const JobShape& job,
               const mesh::Degrees& degrees, int decoders, const Machine& idle) {
  if (!job.decodes) return;
  const Machine machine = shared_by(idle, degrees.dp * decoders);
  if (job.makes_pictures) {
    cost.decode =
        images_of(job, degrees) *
        vae_seconds(model, job, decoders, machine, model.decoder_flops, model.decoder_convolutions);
  }
  const int encoded = (job.encodes ? 1 : 0) + (model.encodes_beside ? 1 : 0);
  if (encoded == 0 && model.edited_pixels.empty()) return;
  cost.encode = encoded * vae_seconds(model, job, decoders, machine, model.encoder_flops,
                                      model.encoder_convolutions);
  cost.encode += edited_seconds(model, job, machine);
  // The text is the first rank's, which is the last that decodes (Plan::decoders).
  const bool both = degrees.pp == 1 || decoders == degrees.world() / degrees.dp;
  if (!both) cost.encode = std::max(cost.encode - cost.text, 0.0);
}

JobCost estimate_cost(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
                      int decoders, const Machine& machine, const Engine& engine,
                      const std::vector<int>& stages) {
  auto cost = Estimate(model, job, degrees, machine, engine, stages).add_up();
  if (!job.decodes) return cost;
  if (job.encodes_text) {
    const double branches = job.guidance ? 2 : 1;
    const double tokens =
        images_of(job, degrees) * branches * (model.text_tokens - model.edited_tokens);
    const int actors = degrees.world() / degrees.dp;
    const int encoding = std::min<int>(actors, std::ssize(model.text_encoder_flops));
    const double flops =
        encoding > 1 ? busiest_encoder(model.text_encoder_flops, actors) : model.text_flops;
    cost.text += (tokens * flops + model.seen_flops) /
                 shared_by(machine, degrees.dp * std::max(encoding, 1)).flops(job.dtype);
  }
  count_vae(cost, model, job, degrees, decoders, machine);
  return cost;
}

}  // namespace troupe::plan
