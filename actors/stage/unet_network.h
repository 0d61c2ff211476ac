#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/network.h"
#include "actors/stage/step_cache.h"
#include "models/unet/control_net.h"
#include "models/unet/patch_port.h"
#include "models/unet/unet_2d_condition.h"

namespace troupe::actors {

/// A whole U-Net with its ControlNets: its levels are not split over stages, nor its weights over
/// shards.
class UNetNetwork final : public Network {
 public:
  UNetNetwork(const spec::ModelSpec& spec, const wire::LoadStage& load,
              const models::LoraWeights& loras, at::ScalarType dtype, at::Device device,
              const std::function<void()>& tick);

  std::int64_t bytes() const override { return bytes_; }
  models::Caption project_caption(const std::vector<models::EncoderOutput>& text) const override;
  std::unique_ptr<JobNetwork> begin(const NetworkJob& job) const override;

 private:
  const spec::ModelSpec& spec_;
  const at::ScalarType dtype_;
  const at::Device device_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<models::unet::UNet2DConditionModel> model_;
  std::vector<std::unique_ptr<models::unet::ControlNetModel>> controls_;
};

/// A U-Net at work on this actor's patches of rows. A micro-step computes all of them; the actors
/// of a sequence group share the request's patches, or with method exact have one each.
class UNetJob final : public JobNetwork {
 public:
  using Controls = std::vector<std::unique_ptr<models::unet::ControlNetModel>>;
  UNetJob(const models::unet::UNet2DConditionModel& model, const Controls& controls,
          const NetworkJob& job);

  void keep_text(const models::Caption& text, const at::Tensor& mask) override;
  std::vector<std::int64_t> input_shape(const NetworkStep& step) const override;
  at::Tensor embed(const NetworkStep& step, const at::Tensor& latents) override;
  at::Tensor run(const NetworkStep& step, at::Tensor hidden) override;
  at::Tensor project(const NetworkStep& step, const at::Tensor& hidden) override;
  std::int64_t bytes() const override;
  std::map<std::string, std::uint64_t> sent_by_layer() const override;
  CacheUse cache_use() const override { return cache_ ? cache_->use() : CacheUse{}; }
  GraphUse graph_use() const override { return {0, 0, "U-Nets are not recorded"}; }

 private:
  /// Batch items whose patches tell each other of the same layers in every step.
  struct Lane {
    wire::RowRange items;
    std::unique_ptr<models::unet::PatchExchange> exchange;
    std::unique_ptr<models::unet::PatchPort> port;
  };
  /// A ControlNet at work, with patches that tell each other of its layers.
  struct Control {
    const models::unet::ControlNetModel& model;
    Lane lane;
    std::vector<models::unet::TextKeys> text = {};
    at::Tensor embedding = {};  // of the picture, own rows
    bool has_begun = false;     // it has counted in a step
  };
  Lane make_lane(wire::RowRange items, bool ever_stale);
  /// Returns what the ControlNets that count in this step add; nothing where none does.
  std::optional<models::unet::Residuals> residuals_of(const NetworkStep& step,
                                                      const std::vector<at::Tensor>& latents);
  std::vector<const models::unet::PatchExchange*> exchanges() const;
  models::unet::StepMode mode_of(const NetworkStep& step) const;
  std::unique_ptr<StepCache> make_cache(bool ever_stale);
  at::Tensor run_cached(const NetworkStep& step, const at::Tensor& hidden);
  /// Returns the output of the inner layers, [items, own positions, C].
  at::Tensor run_inner(wire::RowRange items);
  std::vector<at::Tensor> patches_of(const at::Tensor& rows) const;
  std::vector<models::unet::TextKeys> text_of(wire::RowRange items) const;

  const models::unet::UNet2DConditionModel& model_;
  NetworkJob job_;
  std::shared_ptr<tensor::Group> group_;  // who shares the patches; null where nobody does
  std::vector<Lane> lanes_;  // one, or one for each batch item where each decides for itself
  std::vector<Control> controls_;
  std::vector<models::unet::TextKeys> text_;
  std::optional<models::unet::AddedCondition> added_;
  std::unique_ptr<StepCache> cache_;  // null without one
  // State of the step that is running.
  at::Tensor condition_;
  std::vector<models::unet::UNet2DConditionModel::Outer> outer_;  // by lane, with a cache
};

}  // namespace troupe::actors
