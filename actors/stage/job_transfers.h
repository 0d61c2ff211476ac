#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"

namespace troupe::actors {

/// Transfers between a job's stages: hidden states along the edges between stages and along skip
/// edges, latents from the last stage to the first and to the decoders. Receives are posted when
/// their producer is issued, in that order; nothing waits for a send.
class JobTransfers {
 public:
  JobTransfers(JobContext& job, JobLatents& latents, JobNetwork& network)
      : job_(job), latents_(latents), network_(network) {}

  /// Posts the receive of what `stage` sends here for a micro-step.
  void post_receive(StepPlace place, int stage);
  /// Returns the network's hidden states; the note of the stage before, which was sent ahead of
  /// them, is given to the network first, and what earlier stages left is appended.
  at::Tensor take_hidden(const NetworkStep& step);
  /// Takes the latents that the last stage sent of the step before; called at the first stage.
  void take_latents(StepPlace place);
  /// Sends hidden states to the next stage, and skip states to later stages.
  void send_hidden(const NetworkStep& step, const at::Tensor& hidden);
  /// Sends the rows' new latents to the first stage, which needs them for the next step; called at
  /// the last stage.
  void send_latents(const NetworkStep& step, const RowRuns& rows);
  /// Brings the latents of all rows to the first `decoders` members of the rows group. Called by
  /// every member that holds latents or is one of the decoders.
  void collect_latents(int decoders);

  /// Returns the tensors that have arrived and were not taken yet, by name, for inspection.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;

 private:
  struct Transfer {
    at::Tensor tensor;
    tensor::Work work;
    at::Tensor note;  // undefined where none goes ahead
    tensor::Work note_work;
  };
  at::Tensor take(StepPlace place, int stage);
  void send(std::uint32_t group, const at::Tensor& tensor);
  /// Forgets the sends that are done; throws what ended one.
  void prune_sends();

  JobContext& job_;
  JobLatents& latents_;
  JobNetwork& network_;
  std::map<std::pair<StepPlace, int>, Transfer> inbox_;  // by the stage that sends it
  std::vector<tensor::Work> sends_;
};

}  // namespace troupe::actors
