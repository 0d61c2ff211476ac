#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/beside_latents.h"
#include "actors/stage/given_frames.h"
#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "transport/control/blob_store.h"
#include "transport/wire/prompt_rows.h"

namespace troupe::actors {

/// The picture that a job of image-to-image begins with, and its mask: who decodes encodes it, and
/// everybody's latents begin with it.
class InitImage {
 public:
  /// `picture`, a file, where this actor helps to encode it, `mask` at the first of those; else
  /// null.
  InitImage(JobContext& job, JobLatents& latents, control::BlobBytes picture,
            control::BlobBytes mask)
      : job_(job), latents_(latents) {
    if (needs_image(job_.begin, job_.tools.stage.spec())) picture_ = std::move(picture);
    if (job_.keeps_unmasked()) mask_ = std::move(mask);
  }

  /// Reads the picture, drops it, and encodes it. The first of the ranks that encode returns the
  /// latents [1, C, h, w], float32, or with a seed for each picture as many as there are pictures;
  /// the others return an undefined tensor, as do all if there is no picture. With a mask
  /// [k, C + 1, h, w], the mask last.
  at::Tensor encode();
  /// Steps keep a blank picture where the job has a mask.
  void keep_blank();
  /// Begins the latents of all ranks from the encoded ones that one actor has; called by the whole
  /// replica.
  void begin_latents(const at::Tensor& encoded);

 private:
  /// uint8 [H, W, 3] in the request's size; drops the file. `what` is it in words.
  at::Tensor read_pixels(control::BlobBytes& picture, const std::string& what);

  JobContext& job_;
  JobLatents& latents_;
  control::BlobBytes picture_;
  control::BlobBytes mask_;
};

/// The pictures that a job edits: the first of those who decode encodes them, and the whole replica
/// gets their latents. An actor that runs a text encoder with a vision tower shows them to it.
class EditedPictures {
 public:
  /// `files`: where this actor encodes them or shows them to a text encoder; else none.
  EditedPictures(JobContext& job, std::vector<control::BlobBytes> files)
      : job_(job), files_(std::move(files)) {}

  /// Returns the pictures as the text encoder that this actor runs sees them; none where it sees
  /// none.
  SeenPictures seen() const;
  /// Reads the pictures, one at a time, drops them, and encodes them, where this actor does: the
  /// mean of each one's distribution.
  void encode();
  /// Returns latents of zeros in the pictures' sizes.
  std::vector<at::Tensor> blank() const;
  /// Returns the latents [1, C, h, w], float32, scaled as a sampler takes latents; called by the
  /// whole replica.
  std::vector<at::Tensor> share();

 private:
  JobContext& job_;
  std::vector<control::BlobBytes> files_;
  std::vector<at::Tensor> encoded_;
};

/// A job's first task: its captions, encoded by the actors of the replica that run text encoders,
/// projected by one and kept by all; and the picture that it begins with, and what stands beside
/// its latents.
class JobText {
 public:
  /// `given`: the prompt embeds that the request brings, where this actor projects them; else null.
  JobText(JobContext& job, JobNetwork& network, InitImage init_image, BesideLatents beside,
          EditedPictures edited, GivenFrames given_frames, control::BlobBytes given)
      : job_(job),
        network_(network),
        init_image_(std::move(init_image)),
        beside_(std::move(beside)),
        edited_(std::move(edited)),
        given_frames_(std::move(given_frames)),
        given_(std::move(given)),
        rows_(wire::prompt_rows(job.begin.request, {job.begin.first_image, job.begin.last_image},
                                job.guided())) {}

  TaskResult encode();
  /// Keeps a text without words, of the length that texts are padded or cut to, and a blank picture
  /// where the job keeps one.
  void keep_blank();
  /// Returns the numbers of prompts that this actor's text encoders encoded or found in the cache
  /// for the job.
  const Stage::PromptUse& use() const { return use_; }

 private:
  bool encodes_negative_alone() const;
  /// Returns text of this job's shape, not filled.
  EncodedText empty_text() const;
  /// Encodes the prompts of this replica's branches with the text encoders that this actor runs;
  /// the result has the outputs of all encoders if this actor projects them.
  std::vector<models::EncoderOutput> encode_prompts(TaskResult& result);
  /// Brings the outputs from the actors that run the text encoders to the actor that projects them.
  void gather(std::vector<models::EncoderOutput>& outputs);
  EncodedText project(std::vector<models::EncoderOutput> outputs) const;
  /// Projects the tensors that the request brings instead of prompts; `negative`, if given, stands
  /// before them.
  EncodedText project_given(std::optional<EncodedText> negative) const;
  void share(EncodedText& text);
  /// Gives the network the text of its own branches, and the latents of pictures to edit.
  void keep(const EncodedText& text, std::vector<at::Tensor> references);

  JobContext& job_;
  JobNetwork& network_;
  InitImage init_image_;
  BesideLatents beside_;
  EditedPictures edited_;
  GivenFrames given_frames_;
  control::BlobBytes given_;
  wire::PromptRows rows_;
  Stage::PromptUse use_;
  SeenPictures seen_;  // while prompts are encoded
};

}  // namespace troupe::actors
