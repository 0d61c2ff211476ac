#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"

namespace troupe::actors {

/// What a job sends to other stages and receives from them: hidden states along the edges between
/// stages and along skip edges, latents from the last stage to the first and to the decoders.
/// Receives are posted when their producer is issued, in that order; nothing waits for a send.
class JobTransfers {
 public:
  JobTransfers(JobContext& job, JobLatents& latents, JobNetwork& network)
      : job_(job), latents_(latents), network_(network) {}

  /// Posts the receive of what `stage` sends for a micro-step here.
  void post_receive(StepPlace place, int stage);
  /// The network's hidden states; before them what the stage before tells ahead of them, behind
  /// them what earlier stages left.
  at::Tensor take_hidden(const NetworkStep& step);
  /// At the first stage: the latents that the last stage sent of the step before.
  void take_latents(StepPlace place);
  /// To the next stage, and to later ones what skips there.
  void send_hidden(const NetworkStep& step, const at::Tensor& hidden);
  /// At the last stage: the rows' new latents to the first, which needs them for the next step.
  void send_latents(const NetworkStep& step, const RowRuns& rows);
  /// Brings the latents of all rows to the first `decoders` members of the rows group. Every member
  /// that holds latents or is one of them calls it.
  void collect_latents(int decoders);

  /// What has arrived and was not taken yet, by name, for inspection.
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
