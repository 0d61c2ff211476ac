#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "actors/stage/init_image.h"
#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "transport/wire/prompt_rows.h"

namespace troupe::actors {

/// A job's first task: its captions, encoded by the actors of the replica that run text encoders,
/// projected by one and kept by all; and the picture that it begins with.
class JobText {
 public:
  /// `given`: the prompt embeds that the request brings, where this actor projects them; else null.
  JobText(JobContext& job, JobNetwork& network, InitImage init_image, control::BlobBytes given)
      : job_(job),
        network_(network),
        init_image_(std::move(init_image)),
        given_(std::move(given)),
        rows_(wire::prompt_rows(job.begin.request, {job.begin.first_image, job.begin.last_image},
                                job.guided())) {}

  TaskResult encode();
  /// Keeps a text without words, of the length that texts are padded or cut to, and a blank picture
  /// where the job keeps one.
  void keep_blank();
  /// What the text encoders of this actor had to do for the job.
  const Stage::PromptUse& use() const { return use_; }

 private:
  bool encodes_negative_alone() const;
  /// Text of this job's shape, not filled.
  EncodedText empty_text() const;
  /// The prompts of this replica's branches by the text encoders that this actor runs, and where
  /// it projects by all.
  std::vector<models::EncoderOutput> encode_prompts(TaskResult& result);
  /// From who runs them to who projects.
  void gather(std::vector<models::EncoderOutput>& outputs);
  EncodedText project(std::vector<models::EncoderOutput> outputs) const;
  /// What the request brings instead of prompts; `negative` stands before it where there is one.
  EncodedText project_given(std::optional<EncodedText> negative) const;
  void share(EncodedText& text);
  /// Gives the network the text of its own branches.
  void keep(const EncodedText& text);

  JobContext& job_;
  JobNetwork& network_;
  InitImage init_image_;
  control::BlobBytes given_;
  wire::PromptRows rows_;
  Stage::PromptUse use_;
};

}  // namespace troupe::actors
