#pragma once
#include <vector>

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

}  // namespace troupe::plan
