#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/control_pictures.h"
#include "actors/stage/job_context.h"
#include "actors/stage/job_decoder.h"
#include "actors/stage/job_latents.h"
#include "actors/stage/job_step.h"
#include "actors/stage/job_text.h"
#include "actors/stage/job_transfers.h"

namespace troupe::actors {

/// Inputs that are fetched before a job begins if it does not begin with noise.
struct JobInputs {
  at::Tensor init_latents;  // float32 [n, C, h, w] of the whole batch
  at::Tensor boundary;      // as assemble_boundary gives it, of this replica's pictures
  control::BlobBytes init_image = nullptr;     // a PNG, where this actor helps to encode it
  control::BlobBytes mask_image = nullptr;     // a PNG, where this actor needs it for that
  control::BlobBytes control_image = nullptr;  // a PNG, where this actor helps to encode it
  // Pictures to edit, where this actor encodes them or shows them to a text encoder.
  std::vector<control::BlobBytes> images = {};
  std::vector<control::BlobBytes> control_images = {};  // where this actor computes ControlNets
  FrameFiles frames = {};                      // of a video, where this actor helps to encode them
  control::BlobBytes prompt_embeds = nullptr;  // where this actor projects them for its replica
};

/// One job at one actor: its parts, each of which does some of its tasks. Used by the work loop
/// only.
class StageJob {
 public:
  /// Throws one line when something the request asks for cannot be had (sampler options, memory).
  StageJob(wire::BeginJob begin, const JobTools& tools, const JobInputs& inputs);

  const wire::BeginJob& begin() const { return context_.begin; }
  const JobContext& context() const { return context_; }
  JobWaits& waits() { return context_.waits; }
  const JobLatents& latents() const { return latents_; }
  const JobNetwork& network() const { return *network_; }
  JobStep& step() { return step_; }
  const JobText& text() const { return text_; }

  void post_receive(StepPlace place, int stage) { transfers_.post_receive(place, stage); }
  TaskResult encode_text() { return text_.encode(); }
  TaskResult micro_step(StepPlace place);
  TaskResult decode(int part) { return decoder_.decode(part); }

  // For rehearsals.
  void keep_blank_text() { text_.keep_blank(); }
  /// Makes what the job's previews will need.
  void warm_up_previews();

  /// Returns the tensors that the job keeps, by name, for inspection.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;

 private:
  std::unique_ptr<JobNetwork> begin_network();

  JobContext context_;
  JobLatents latents_;
  ControlPictures control_;
  std::unique_ptr<JobNetwork> network_;
  JobTransfers transfers_;
  JobStep step_;
  JobText text_;
  JobDecoder decoder_;
};

}  // namespace troupe::actors
