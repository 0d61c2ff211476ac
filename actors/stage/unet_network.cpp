#include "actors/stage/unet_network.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "actors/parallel/patch_group.h"
#include "base/format.h"
#include "models/safetensors.h"
#include "transport/wire/request_rules.h"

namespace troupe::actors {
namespace {

using models::unet::Features;
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

at::Tensor of_items(const at::Tensor& x, wire::RowRange items) {
  return x.slice(0, items.begin, items.end);
}

Features of_items(const Features& x, wire::RowRange items) {
  Features own{{}, x.level};
  for (const auto& patch : x.patches)
    own.patches.push_back(of_items(patch, items));
  return own;
}

/// Returns the tokens of all patches, [B, positions, C].
at::Tensor joined_tokens(const Features& x) {
  return models::unet::tokens_of(at::cat(x.patches, 2));
}

/// Wraps another port: shows progress before every layer that asks it, and tells of every norm.
class LivePort final : public models::unet::UNetPort {
 public:
  /// `of`: the network in front of a layer's name; "" = the U-Net.
  LivePort(models::unet::UNetPort& inner, const NetworkJob& job, std::string of = "")
      : inner_(inner), tick_(job.tick), layers_(job.layers), of_(std::move(of)) {}

  std::int64_t height(int level) const override { return inner_.height(level); }
  std::vector<models::RowRun> rows(int level) const override { return inner_.rows(level); }
  std::vector<models::Halo> halos(const Site& site, const Features& x) override {
    tick_();
    return inner_.halos(site, x);
  }
  std::vector<at::Tensor> moments(const Site& site,
                                  const std::vector<models::unet::Moments>& own) override {
    tick_();
    for (const auto& patch : own)
      layers_.see(of_ + "group norm " + std::to_string(site.index), patch.values);
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
  std::string of_;
};

}  // namespace

UNetNetwork::UNetNetwork(const spec::ModelSpec& spec, const wire::LoadStage& load,
                         const models::LoraWeights& loras, at::ScalarType dtype, at::Device device,
                         const std::function<void()>& tick)
    : spec_(spec), dtype_(dtype), device_(device) {
  const auto read_network = [&](models::WeightStore& weights, const auto& touches,
                                const auto& make) {
    std::set<std::string> read;
    const auto get = [&](const std::string& name, at::IntArrayRef shape) {
      if (tick) tick();
      read.insert(name);
      auto weight = weights.get(name, shape, dtype, device);
      bytes_ += static_cast<std::int64_t>(weight.nbytes());
      return weight;
    };
    const auto packed = [&](const std::string& name) {
      return touches(name) ? std::nullopt : weights.packed(name);
    };
    auto network = make(get, packed);
    bytes_ -= network->saved_bytes();
    for (const auto& name : read)
      weights.release(name);
    return network;
  };
  const auto products = weight_type(load.weight_dtype);
  models::WeightStore own(spec.transformer_weights);
  loras.adapt(own, "transformer");
  model_ = read_network(
      own, [&](const std::string& name) { return loras.touches("transformer", name); },
      [&](const auto& get, const auto& packed) {
        return std::make_unique<models::unet::UNet2DConditionModel>(
            *spec.transformer.unet(), own, dtype, device, get, products, packed);
      });
  for (const auto& net : spec.controlnets) {
    models::WeightStore weights(net.weights);
    controls_.push_back(read_network(
        weights, [](const std::string&) { return false; },
        [&](const auto& get, const auto& packed) {
          return std::make_unique<models::unet::ControlNetModel>(net.network, weights, dtype,
                                                                 device, get, products, packed);
        }));
  }
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
  return std::make_unique<UNetJob>(*model_, controls_, job);
}

UNetJob::Lane UNetJob::make_lane(wire::RowRange items, bool ever_stale) {
  const auto& request = job_.begin.request;
  const int ranks = group_ ? group_->size() : 1;
  const int patches = request.method == Method::exact ? ranks : request.num_pipeline_patch;
  const models::unet::PatchCuts cuts(job_.size.latent_height, patches, model_.levels());
  Lane lane{items, {}, {}};
  if (group_) {
    lane.exchange = std::make_unique<PatchGroup>(*group_, cuts, job_.size.latent_width, job_.wait);
  } else {
    lane.exchange = std::make_unique<models::unet::LocalExchange>(patches);
  }
  lane.port = std::make_unique<models::unet::PatchPort>(cuts, *lane.exchange,
                                                        norm_mode(request.group_norm), ever_stale);
  return lane;
}

UNetJob::UNetJob(const models::unet::UNet2DConditionModel& model, const Controls& controls,
                 const NetworkJob& job)
    : model_(model), job_(job), group_(job.group(job.begin.groups.stage)) {
  const auto& request = job_.begin.request;
  const bool ever_stale = !std::ranges::all_of(job_.begin.steps, wire::is_whole) &&
                          request.exchange != PatchExchange::naive;
  const bool cached = request.step_cache != StepCacheRule::none;
  const auto items = static_cast<std::int32_t>(job_.images * job_.branches);
  const std::int32_t each = cached && ever_stale ? 1 : items;
  for (std::int32_t begin = 0; begin < items; begin += each) {
    lanes_.push_back(make_lane({begin, begin + each}, ever_stale));
  }
  for (const auto& control : controls)
    controls_.push_back({*control, make_lane({0, items}, ever_stale)});
  if (cached) cache_ = make_cache(ever_stale);
}

std::unique_ptr<StepCache> UNetJob::make_cache(bool ever_stale) {
  const auto& request = job_.begin.request;
  const auto runs = lanes_.front().port->rows(0);
  const std::int64_t positions = (runs.back().end - runs.front().begin) * job_.size.latent_width;
  const std::int64_t width = model_.spec().inner_channels();
  StepCache::Shape shape{.blocks = {0, 1},
                         .items = job_.images * job_.branches,
                         .width = width,
                         .edge = width,
                         .watches_block = false,
                         .patched = ever_stale,
                         .tokens = {positions},
                         .busy = {{true}}};
  const bool adds_up = request.step_cache == StepCacheRule::teacache;
  SkipRule rule(request.step_cache_threshold,
                adds_up ? std::vector<double>{1, 0} : std::vector<double>{}, shape.items, 1);
  StepCache::Calls calls{
      .run = [this](const NetworkStep&, const at::Tensor&, wire::RowRange items, models::BlockRange,
                    const StepCache::Columns&) { return run_inner(items); },
      .signal =
          [this](const NetworkStep&, const at::Tensor&) {
            std::vector<at::Tensor> items;
            for (const auto& outer : outer_)
              items.push_back(joined_tokens(outer.first) - joined_tokens(outer.entered));
            return at::cat(items);
          },
      .sum =
          [this](at::Tensor& sums) {
            if (group_) job_.wait(group_->all_reduce(sums, tensor::ReduceOp::sum));
            job_.await_device();
          }};
  return std::make_unique<StepCache>(std::move(shape), std::move(rule), std::move(calls));
}

void UNetJob::keep_text(const models::Caption& text, const at::Tensor&) {
  text_ = model_.keys_of(text.states);
  const auto runs = lanes_.front().port->rows(0);
  for (std::size_t i = 0; i < controls_.size(); ++i) {
    auto& control = controls_[i];
    control.text = control.model.keys_of(text.states);
    control.embedding = control.model.embed(job_.control_picture(i), job_.tick)
                            .slice(2, runs.front().begin, runs.back().end)
                            .clone();
  }
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

std::vector<at::Tensor> UNetJob::patches_of(const at::Tensor& rows) const {
  std::vector<at::Tensor> patches;
  const auto runs = lanes_.front().port->rows(0);
  for (const auto& run : runs)
    patches.push_back(rows.narrow(2, run.begin - runs.front().begin, run.size()));
  return patches;
}

std::vector<models::unet::TextKeys> UNetJob::text_of(wire::RowRange items) const {
  std::vector<models::unet::TextKeys> own;
  for (const auto& keys : text_)
    own.push_back({of_items(keys.k, items), of_items(keys.v, items)});
  return own;
}

at::Tensor UNetJob::run(const NetworkStep& step, at::Tensor hidden) {
  if (text_.empty()) throw std::logic_error("[actor] a micro-step came before the text");
  for (const auto& lane : lanes_)
    lane.port->begin_step(mode_of(step));
  condition_ = model_.condition(job_.sampler.timestep(step.place.step), hidden.size(0), added_);
  LivePort port(*lanes_.front().port, job_);
  const auto latents = patches_of(hidden);
  const auto residuals = residuals_of(step, latents);
  const auto out =
      cache_
          ? run_cached(step, hidden)
          : at::cat(model_(latents, condition_, text_, port, residuals ? &*residuals : nullptr), 2);
  return out.to(at::kFloat).contiguous();
}

std::optional<models::unet::Residuals> UNetJob::residuals_of(
    const NetworkStep& step, const std::vector<at::Tensor>& latents) {
  const auto& request = job_.begin.request;
  std::optional<models::unet::Residuals> sum;
  for (std::size_t i = 0; i < controls_.size(); ++i) {
    if (!wire::control_counts(request, i, step.place.step)) continue;
    auto& control = controls_[i];
    // No values of an earlier step are there in its first step, and no step wants its last one's.
    auto own_step = step;
    own_step.last = step.last || !wire::control_counts(request, i, step.place.step + 1);
    const auto mode = mode_of(own_step);
    const bool begins = !std::exchange(control.has_begun, true);
    control.lane.port->begin_step(begins && mode != StepMode::naive ? StepMode::synchronous : mode);
    LivePort port(*control.lane.port, job_, fmt::format("ControlNet {}: ", i + 1));
    const auto condition = control.model.condition(job_.sampler.timestep(step.place.step),
                                                   latents.front().size(0), added_);
    auto own = control.model(latents, patches_of(control.embedding), condition, control.text,
                             wire::control_value(request.control_scale, i, 1), port);
    if (!sum) {
      sum = std::move(own);
      continue;
    }
    for (std::size_t value = 0; value < own.down.size(); ++value)
      models::unet::add(sum->down[value], own.down[value]);
    models::unet::add(sum->middle, own.middle);
  }
  return sum;
}

at::Tensor UNetJob::run_cached(const NetworkStep& step, const at::Tensor& hidden) {
  outer_.clear();
  for (const auto& lane : lanes_) {
    LivePort port(*lane.port, job_);
    outer_.push_back(model_.enter(patches_of(of_items(hidden, lane.items)),
                                  of_items(condition_, lane.items), text_of(lane.items), port));
    lane.exchange->part();
  }
  // Inner layers are given zeros, so that their change is their output.
  const auto& like = outer_.front().first.patches.front();
  const auto inner = cache_->run(
      step,
      at::zeros({hidden.size(0), hidden.size(2) * hidden.size(3), model_.spec().inner_channels()},
                like.options()),
      0);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const auto& items = lanes_[i].items;
    LivePort port(*lanes_[i].port, job_);
    Features own{
        patches_of(models::unet::rows_of(of_items(inner, items), hidden.size(2), hidden.size(3))),
        0};
    parts.push_back(at::cat(model_.leave(std::exchange(outer_[i], {}), std::move(own),
                                         of_items(condition_, items), text_of(items), port),
                            2));
  }
  return at::cat(parts);
}

at::Tensor UNetJob::run_inner(wire::RowRange items) {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const auto& lane = lanes_[i];
    const wire::RowRange own{std::max(items.begin, lane.items.begin),
                             std::min(items.end, lane.items.end)};
    if (own.begin >= own.end) continue;
    const wire::RowRange within{own.begin - lane.items.begin, own.end - lane.items.begin};
    LivePort port(*lane.port, job_);
    const models::unet::UNet2DConditionModel::Outer outer{of_items(outer_[i].entered, within),
                                                          of_items(outer_[i].first, within)};
    parts.push_back(
        joined_tokens(model_.inner(outer, of_items(condition_, own), text_of(own), port)));
    lane.exchange->part();
  }
  return at::cat(parts);
}

at::Tensor UNetJob::project(const NetworkStep&, const at::Tensor& hidden) {
  return hidden;
}

std::vector<const models::unet::PatchExchange*> UNetJob::exchanges() const {
  std::vector<const models::unet::PatchExchange*> all;
  for (const auto& lane : lanes_)
    all.push_back(lane.exchange.get());
  for (const auto& control : controls_)
    all.push_back(control.lane.exchange.get());
  return all;
}

std::int64_t UNetJob::bytes() const {
  std::int64_t sum = cache_ ? cache_->bytes() : 0;
  for (const auto* exchange : exchanges())
    sum += exchange->bytes();
  const auto add_text = [&](const std::vector<models::unet::TextKeys>& text) {
    for (const auto& keys : text)
      sum += static_cast<std::int64_t>(keys.k.nbytes() + keys.v.nbytes());
  };
  add_text(text_);
  for (const auto& control : controls_) {
    add_text(control.text);
    if (control.embedding.defined()) sum += static_cast<std::int64_t>(control.embedding.nbytes());
  }
  if (added_) sum += static_cast<std::int64_t>(added_->pooled.nbytes());
  return sum;
}

std::map<std::string, std::uint64_t> UNetJob::sent_by_layer() const {
  std::map<std::string, std::uint64_t> sent;
  for (const auto* exchange : exchanges()) {
    const auto* group = dynamic_cast<const PatchGroup*>(exchange);
    if (group == nullptr) return {};
    for (const auto& [kind, bytes] : group->bytes_sent()) {
      const char* name = kind == Site::Kind::conv   ? "convolution"
                         : kind == Site::Kind::norm ? "group norm"
                                                    : "attention";
      if (bytes > 0) sent[name] += bytes;
    }
  }
  return sent;
}

}  // namespace troupe::actors
