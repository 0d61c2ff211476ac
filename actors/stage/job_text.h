#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "actors/stage/init_image.h"
#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"

namespace troupe::actors {

/// A job's first task: its captions, encoded by one actor of the replica and kept by all; and the
/// picture that it begins with.
class JobText {
 public:
  /// `given`: the prompt embeds that the request brings, where this actor projects them; else null.
  JobText(JobContext& job, JobLatents& latents, JobNetwork& network, control::BlobBytes init_image,
          control::BlobBytes given)
      : job_(job),
        network_(network),
        init_image_(job, latents, std::move(init_image)),
        given_(std::move(given)) {}

  TaskResult encode();
  /// Keeps a text without words, of the length that texts are padded or cut to.
  void keep_blank();

 private:
  /// Text of this job's shape, not filled.
  EncodedText empty_text() const;
  /// The prompts of this replica's branches, encoded.
  EncodedText encode_prompts() const;
  /// What the request brings instead of prompts.
  EncodedText project_given() const;
  void share(EncodedText& text);
  /// Gives the network the text of its own branches.
  void keep(const EncodedText& text);

  JobContext& job_;
  JobNetwork& network_;
  InitImage init_image_;
  control::BlobBytes given_;
};

}  // namespace troupe::actors
