#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "actors/parallel/sequence_attention.h"
#include "actors/stage/block_graphs.h"
#include "actors/stage/network.h"
#include "actors/stage/rows.h"
#include "actors/stage/step_cache.h"
#include "models/spec/transformer_facts.h"

namespace troupe::actors {

/// A stage of a diffusion transformer, or of a model's two: both are in memory, or the one that
/// computes.
class DitNetwork final : public Network {
 public:
  /// `loras` must outlive it.
  DitNetwork(const spec::ModelSpec& spec, const wire::LoadStage& load,
             const models::LoraWeights& loras, at::ScalarType dtype, at::Device device,
             const std::function<void()>& tick);

  std::int64_t bytes() const override;
  models::Caption project_caption(const std::vector<models::EncoderOutput>& text) const override;
  std::unique_ptr<JobNetwork> begin(const NetworkJob& job) const override;

  /// Returns the first transformer or the second; if it is not in memory, its weights are read in
  /// the place of the other's, with a `tick` before each tensor. Valid until the other is asked
  /// for.
  const models::DiffusionTransformer& transformer(bool second,
                                                  const std::function<void()>& tick) const;
  /// Returns how many times a transformer's weights were read: what was recorded before the last
  /// time may hold places of weights that are gone.
  std::uint64_t loads() const { return loads_; }
  const spec::ModelSpec& spec() const { return spec_; }
  at::Device device() const { return device_; }

 private:
  using Made = std::unique_ptr<models::DiffusionTransformer>;

  const spec::ModelSpec& spec_;
  at::Device device_;
  bool keeps_both_;
  models::StagePart part_;
  std::function<Made(const models::StagePart& part, const std::function<void()>& tick)> load_;
  mutable std::array<Made, 2> held_;  // null where it is not in memory
  mutable std::uint64_t loads_ = 0;
};

/// A transformer's stage at work for one job, with stale K,V and the caption's values.
class DitJob final : public JobNetwork {
 public:
  /// `network` must outlive it.
  DitJob(const DitNetwork& network, const NetworkJob& job);

  void keep_text(const models::Caption& text, const at::Tensor& mask) override;
  std::vector<std::int64_t> input_shape(const NetworkStep& step) const override;
  at::Tensor embed(const NetworkStep& step, const at::Tensor& latents) override;
  at::Tensor run(const NetworkStep& step, at::Tensor hidden) override;
  at::Tensor project(const NetworkStep& step, const at::Tensor& hidden) override;
  std::int64_t note_size(const NetworkStep& step) const override;
  void take_note(const NetworkStep& step, const at::Tensor& note) override;
  at::Tensor note(const NetworkStep& step) const override;
  CacheUse cache_use() const override;
  std::string state(int step) const override;
  GraphUse graph_use() const override;
  bool is_asynchronous() const override {
    return job_.begin.request.method == Method::distrifusion;
  }
  std::int64_t bytes() const override;
  std::vector<std::pair<std::string, at::Tensor>> tensors() const override;

 private:
  /// Returns whether the second of two transformers computes a step.
  bool is_of_second(int step) const {
    return network_.spec().is_of_second(job_.sampler.timestep(step));
  }
  const models::DiffusionTransformer& transformer() const {
    return network_.transformer(second_, job_.tick);
  }
  /// Makes the transformer of a step the one that computes. At a change nothing stays that the
  /// other one made, and no recording where its weights were read anew.
  void turn_to(int step);
  /// Returns the text as the transformer that computes has projected it.
  models::Caption own_text() const;
  std::unique_ptr<SequenceAttention> make_attention() const;
  /// Returns the reason why a call of the blocks cannot be recorded as a whole; empty if it can.
  std::string why_plain() const;
  std::unique_ptr<StepCache> make_cache();
  /// Number of text tokens that are part of the sequence, with those of pictures to edit, which are
  /// computed as the text is; 0 if the text is cross-attended to.
  std::int64_t text_tokens() const;
  /// Text tokens without the last ones, which fill up the picture's or are of pictures to edit.
  std::int64_t text_alone() const;
  /// Returns the text tokens of the sequence that a rank computes in a micro-step.
  spec::TextShare text_of(int patch, int sequence_rank) const;
  spec::TextShare own_text(int patch) const { return text_of(patch, sequence_rank(job_.begin)); }
  RowRuns own_rows(int patch) const {
    return rows_of(job_.begin.micro_steps, patch, sequence_rank(job_.begin));
  }
  /// Runs some batch items through some blocks, in all columns of a step cache or in some.
  at::Tensor run_blocks(const NetworkStep& step, at::Tensor hidden, wire::RowRange items,
                        models::BlockRange blocks, const StepCache::Columns& columns);
  /// Returns the condition of a step and of batch items. If recordings read the condition, it lies
  /// in the same memory as in the step before.
  const models::StepCondition& condition(int step, wire::RowRange items);
  models::CallTokens call_tokens(int patch) const;
  /// Tells `layers` of the block that an attention belongs to, before the attention is computed.
  void watch(LayerWatch& layers, int slot, const at::Tensor& qkv) const;
  /// Returns the text of batch items.
  std::shared_ptr<const models::CaptionCache> caption_of(wire::RowRange items) const;

  const DitNetwork& network_;
  const spec::TransformerSpec& facts_;
  at::Device device_;
  NetworkJob job_;
  bool second_;  // the second of two transformers computes
  std::int64_t columns_;
  models::Caption text_;  // of both transformers, where there are two
  at::Tensor text_mask_;
  std::shared_ptr<const models::CaptionCache> caption_;
  std::unique_ptr<SequenceAttention> attention_;
  std::unique_ptr<models::TensorParallelPort> sums_;
  struct OfStep {
    int step = -1;
    std::unique_ptr<models::StepCondition> condition;
  };
  std::map<std::pair<int, int>, OfStep> conditions_;  // by batch items
  std::unique_ptr<BlockGraphs> graphs_;               // null where calls are not recorded
  GraphUse former_graphs_;                            // of those that were given up
  std::uint64_t loads_ = 0;                           // of the network, when these began
  std::unique_ptr<StepCache> cache_;                  // null without one
};

}  // namespace troupe::actors
