#include <ATen/ATen.h>

#include "models/dit/transformer_stage.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;

namespace {

/// A stage of a joint model without blocks.
class JointStage final : public TransformerStage {
 public:
  JointStage(spec::TransformerFacts facts, const StagePart& part)
      : TransformerStage("family", std::move(facts), part, at::kFloat, at::kCPU) {}
  int64_t bytes() const override { return 0; }
  std::unique_ptr<StepCondition> condition(const StepInput&, const CaptionCache&) const override {
    return nullptr;
  }

 private:
  Caption caption_of(const std::vector<EncoderOutput>&) const override { return {}; }
  at::Tensor tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const override {
    return latents;
  }
  at::Tensor compute(at::Tensor hidden, const StepCondition&, const CaptionCache&,
                     const BlockCall&) const override {
    return hidden;
  }
  at::Tensor signal_of(const at::Tensor& picture, const StepCondition&) const override {
    return picture;
  }
  at::Tensor prediction_of(const at::Tensor& hidden, const StepCondition&, int64_t) const override {
    return hidden;
  }
};

}  // namespace

TEST_CASE("a joint model's text has a pooled vector where its family has one, and no other") {
  const at::Tensor states = at::rand({3, 5, 8}), pooled = at::rand({3, 4});
  const at::Tensor mask = at::ones({3, 5}, at::kBool);
  const auto caption = [&](const at::Tensor& vector, bool embeds, int64_t width) {
    spec::TransformerFacts facts;
    facts.caption_width = 8;
    facts.pooled_width = width;
    facts.joint = true;
    return JointStage(facts, {{0, 0}, embeds, false}).cache_caption({states, vector}, mask);
  };
  for (const bool embeds : {true, false}) {
    CAPTURE(embeds);
    const auto with = caption(pooled, embeds, 4), without = caption({}, embeds, 0);
    CHECK(with->batch() == 3);
    CHECK(without->batch() == 3);
    CHECK(without->items(1, 3)->batch() == 2);
    CHECK(with->bytes() - without->bytes() == static_cast<int64_t>(pooled.nbytes()));
    CHECK(without->bytes() == (embeds ? static_cast<int64_t>(states.nbytes()) : 0));
  }
  CHECK_THROWS_AS(caption({}, true, 4), std::invalid_argument);
  CHECK_THROWS_AS(caption(pooled, true, 0), std::invalid_argument);
  CHECK_THROWS_AS(caption(pooled, true, 5), std::invalid_argument);
}
