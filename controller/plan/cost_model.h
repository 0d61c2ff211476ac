#pragma once
#include <vector>

#include "controller/mesh/mesh.h"
#include "controller/plan/machine.h"
#include "controller/plan/shape.h"

namespace troupe::plan {

/// Seconds of one kind of micro-step on each stage, and of what it sends on.
struct MicroTimes {
  std::vector<double> compute;  // by stage, with what is waited for in it
  double edge = 0;              // to the next stage; overlaps with computing
  double feedback = 0;          // from the last stage to the first
};

/// Plays the micro-steps of a pipeline in the dispatcher's order: a stage takes its patches in
/// turn, a patch's next step begins when its latents are back at the first stage, an edge carries
/// one message at a time. Times are of the model, so nothing here reads a clock.
class PipelineClock {
 public:
  PipelineClock(int stages, int patches);

  /// Plays `count` steps of the whole picture, which goes through the stages in parts of its batch.
  /// The first step waits for all patches, each other step for the one before; the last part brings
  /// the latents of all back, for which all patches wait.
  void whole_steps(const std::vector<MicroTimes>& parts, int count);
  /// Plays one step patch by patch.
  void patch_step(const std::vector<MicroTimes>& patches);
  /// Plays `count` such steps; of many, those after the pipeline has settled are taken to last as
  /// long as the last ones before.
  void patch_steps(const std::vector<MicroTimes>& patches, int count);

  /// Returns when the last micro-step so far has left the last stage.
  double now() const { return end_; }

 private:
  double run(const MicroTimes& times, double ready, bool returns = true);
  void shift(double seconds);

  std::vector<double> stage_free_, edge_free_;
  std::vector<double> back_;  // by patch: when its latents are at the first stage again
  double end_ = 0;
};

/// Predicted seconds of one job, by phase.
struct JobCost {
  double text = 0;
  /// Part of the encoding of a picture to begin with that is not done while another actor is busy
  /// with the text.
  double encode = 0;
  double synchronous = 0;  // the steps of the whole picture: warm-up, or all of an exact job
  double patched = 0;      // the steps that go patch by patch, with filling and draining
  double decode = 0;
  /// Parts of the synchronous and patched seconds in which the busiest actor computes, and in which
  /// it waits for exposed transfers; the rest is pipeline bubbles.
  double computing = 0;
  double transferring = 0;

  double denoise() const { return synchronous + patched; }
  double total() const { return text + encode + denoise() + decode; }
  /// Seconds in the autoencoder.
  double around() const { return encode + decode; }
};

/// Seconds of a job on a mesh, from shapes alone: FLOPs against speeds that fall for small
/// products, memory traffic, launches; Ulysses and tp exposed, ring hidden behind attention as far
/// as it goes, DistriFusion's exchange behind its whole wave, pipeline edges behind computing.
/// README.md says what it leaves out. The costliest rank decides, which is the first one:
/// remainders go to the first. `decoders`: actors that decode a replica's pictures together, and
/// encode the one to begin with. `stages`: blocks of each stage; empty = as they are split where
/// nobody lists them.
JobCost estimate_cost(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
                      int decoders, const Machine& machine, const Engine& engine = {},
                      const std::vector<int>& stages = {});

/// Sets what the autoencoder takes, with so many actors of a replica at it; `cost` has the rest.
void count_vae(JobCost& cost, const ModelShape& model, const JobShape& job,
               const mesh::Degrees& degrees, int decoders, const Machine& machine);

}  // namespace troupe::plan
