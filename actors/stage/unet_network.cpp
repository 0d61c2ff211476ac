#include "actors/stage/unet_network.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "actors/parallel/patch_group.h"
#include "models/safetensors.h"

namespace troupe::actors {
namespace {

using models::unet::NormMode;
using models::unet::Site;
using models::unet::StepMode;

NormMode norm_mode(GroupNormMoments moments) {
  switch (moments) {
    case GroupNormMoments::stale:
      return NormMode::stale;
    case GroupNormMoments::synchronous:
      return NormMode::synchronous;
    case GroupNormMoments::separate:
      return NormMode::separate;
    default:
      return NormMode::corrected;
  }
}

/// Another port with a sign of life before every layer that asks it, which tells of every norm.
class LivePort final : public models::unet::UNetPort {
 public:
  LivePort(models::unet::UNetPort& inner, const NetworkJob& job)
      : inner_(inner), tick_(job.tick), layers_(job.layers) {}

  std::int64_t height(int level) const override { return inner_.height(level); }
  std::vector<models::RowRun> rows(int level) const override { return inner_.rows(level); }
  std::vector<models::Halo> halos(const Site& site, const models::unet::Features& x) override {
    tick_();
    return inner_.halos(site, x);
  }
  std::vector<at::Tensor> moments(const Site& site,
                                  const std::vector<models::unet::Moments>& own) override {
    tick_();
    for (const auto& patch : own)
      layers_.see("group norm " + std::to_string(site.index), patch.values);
    return inner_.moments(site, own);
  }
  std::vector<at::Tensor> attend(const Site& site, const std::vector<at::Tensor>& qkv) override {
    tick_();
    return inner_.attend(site, qkv);
  }

 private:
  models::unet::UNetPort& inner_;
  const std::function<void()>& tick_;
  LayerWatch& layers_;
};

}  // namespace

UNetNetwork::UNetNetwork(const spec::ModelSpec& spec, const models::LoraWeights& loras,
                         at::ScalarType dtype, at::Device device, const std::function<void()>& tick)
    : spec_(spec), dtype_(dtype), device_(device) {
  models::WeightStore weights(spec.transformer_weights);
  loras.adapt(weights, "transformer");
  std::set<std::string> read;
  const auto get = [&](const std::string& name, at::IntArrayRef shape) {
    if (tick) tick();
    read.insert(name);
    auto weight = weights.get(name, shape, dtype, device);
    bytes_ += static_cast<std::int64_t>(weight.nbytes());
    return weight;
  };
  model_ = std::make_unique<models::unet::UNet2DConditionModel>(*spec.transformer.unet(), weights,
                                                                dtype, device, get);
  for (const auto& name : read)
    weights.release(name);
}

models::Caption UNetNetwork::project_caption(const std::vector<models::EncoderOutput>& text) const {
  models::Caption caption;
  std::vector<at::Tensor> states;
  for (const auto& encoder : text)
    states.push_back(encoder.states);
  caption.states = at::cat(states, 2).to(device_, dtype_);
  if (model_->spec().pooled_width() > 0) caption.pooled = text.back().pooled.to(device_, dtype_);
  return caption;
}

std::unique_ptr<JobNetwork> UNetNetwork::begin(const NetworkJob& job) const {
  return std::make_unique<UNetJob>(*model_, job);
}

UNetJob::UNetJob(const models::unet::UNet2DConditionModel& model, const NetworkJob& job)
    : model_(model), job_(job), group_(job.group(job.begin.groups.stage)) {
  const auto& request = job_.begin.request;
  const int ranks = group_ ? group_->size() : 1;
  const int patches = request.method == Method::exact ? ranks : request.num_pipeline_patch;
  const models::unet::PatchCuts cuts(job_.size.latent_height, patches, model_.levels());
  if (group_) {
    exchange_ = std::make_unique<PatchGroup>(*group_, cuts, job_.size.latent_width, job_.wait);
  } else {
    exchange_ = std::make_unique<models::unet::LocalExchange>(patches);
  }
  const bool ever_stale = !std::ranges::all_of(job_.begin.steps, wire::is_whole) &&
                          request.exchange != PatchExchange::naive;
  port_ = std::make_unique<models::unet::PatchPort>(cuts, *exchange_, norm_mode(request.group_norm),
                                                    ever_stale);
}

void UNetJob::keep_text(const models::Caption& text, const at::Tensor&) {
  text_ = model_.keys_of(text.states);
  if (!text.pooled.defined()) return;
  const auto& request = job_.begin.request;
  const auto height = static_cast<float>(request.height);
  const auto width = static_cast<float>(request.width);
  const auto sizes =
      at::tensor({height, width, 0.0F, 0.0F, height, width}).repeat({text.pooled.size(0), 1});
  added_ = {text.pooled, sizes.to(text.pooled.device())};
}

std::vector<std::int64_t> UNetJob::input_shape(const NetworkStep&) const {
  throw std::logic_error("[actor] a U-Net has one stage: nothing is sent to it");
}

at::Tensor UNetJob::embed(const NetworkStep&, const at::Tensor& latents) {
  return latents;
}

StepMode UNetJob::mode_of(const NetworkStep& step) const {
  if (step.place.patch < 0) return StepMode::synchronous;
  if (job_.begin.request.exchange == PatchExchange::naive) return StepMode::naive;
  const bool told = job_.begin.request.exchange == PatchExchange::stale && !step.last;
  return told ? StepMode::stale : StepMode::frozen;
}

at::Tensor UNetJob::run(const NetworkStep& step, at::Tensor hidden) {
  if (text_.empty()) throw std::logic_error("[actor] a micro-step came before the text");
  LivePort port(*port_, job_);
  port_->begin_step(mode_of(step));
  std::vector<at::Tensor> patches;
  const auto runs = port.rows(0);
  for (const auto& run : runs)
    patches.push_back(hidden.narrow(2, run.begin - runs.front().begin, run.size()));
  const auto condition =
      model_.condition(job_.sampler.timestep(step.place.step), hidden.size(0), added_);
  return at::cat(model_(patches, condition, text_, port), 2).to(at::kFloat).contiguous();
}

at::Tensor UNetJob::project(const NetworkStep&, const at::Tensor& hidden) {
  return hidden;
}

std::int64_t UNetJob::bytes() const {
  std::int64_t sum = exchange_->bytes();
  for (const auto& keys : text_)
    sum += static_cast<std::int64_t>(keys.k.nbytes() + keys.v.nbytes());
  if (added_) sum += static_cast<std::int64_t>(added_->pooled.nbytes());
  return sum;
}

std::map<std::string, std::uint64_t> UNetJob::sent_by_layer() const {
  const auto* group = dynamic_cast<const PatchGroup*>(exchange_.get());
  if (group == nullptr) return {};
  std::map<std::string, std::uint64_t> sent;
  for (const auto& [kind, bytes] : group->bytes_sent()) {
    const char* name = kind == Site::Kind::conv   ? "convolution"
                       : kind == Site::Kind::norm ? "group norm"
                                                  : "attention";
    if (bytes > 0) sent[name] = bytes;
  }
  return sent;
}

}  // namespace troupe::actors
