#include "controller/plan/shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "controller/plan/request_defaults.h"
#include "models/spec/resolution_bins.h"
#include "transport/wire/request_rules.h"

namespace troupe::plan {
namespace {

/// FLOPs of the sampler's step for a latent value, about.
constexpr double kSamplerFlops = 20;

/// One half of the autoencoder.
struct VaeCost {
  double flops = 0;  // a latent pixel; 1×1 convolutions of latents and moments are left out
  int convolutions = 0;

  void convolve(std::int64_t from, std::int64_t to, std::int64_t scale, int side = 3) {
    flops +=
        2.0 * static_cast<double>(from * to) * side * side * static_cast<double>(scale * scale);
    ++convolutions;
  }
  void add(const spec::VaeLayer& layer) {
    using Kind = spec::VaeLayer::Kind;
    switch (layer.kind) {
      case Kind::norm:
      case Kind::kept:
      case Kind::added:
        return;
      case Kind::attention:
        flops +=
            2.0 * 4 * static_cast<double>(layer.in * layer.in * layer.scale_in * layer.scale_in);
        return;
      case Kind::residual:
        convolve(layer.in, layer.out, layer.scale_in);
        convolve(layer.out, layer.out, layer.scale_in);
        if (layer.in != layer.out) convolve(layer.in, layer.out, layer.scale_in, 1);
        return;
      case Kind::convolution:
        if (layer.side == 1) return;
        [[fallthrough]];
      case Kind::upsample:
      case Kind::downsample:
      case Kind::doubled_frames:
      case Kind::halved_frames:
        return convolve(layer.in, layer.out, layer.scale_out);
    }
  }
};

VaeCost cost_of(const spec::VaeSpec& vae, spec::VaeHalf half) {
  VaeCost cost;
  for (const auto& layer : spec::layers_of(vae, half))
    cost.add(layer);
  return cost;
}

/// FLOPs of CLIP and BERT per token: attention and two products of the feed-forward.
template <class Encoder>
double plain_flops(const Encoder& encoder) {
  const auto width = static_cast<double>(encoder.hidden_size);
  return 2 * (4 * width * width + 2 * width * static_cast<double>(encoder.intermediate_size)) *
         static_cast<double>(encoder.num_hidden_layers);
}

double text_flops(const spec::TextEncoderSpec& encoder) {
  if (encoder.absent) return 0;
  if (const auto* clip = std::get_if<spec::ClipSpec>(&encoder.config)) return plain_flops(*clip);
  if (const auto* bert = std::get_if<spec::BertSpec>(&encoder.config)) return plain_flops(*bert);
  if (const auto* qwen = std::get_if<spec::QwenTextSpec>(&encoder.config)) {
    const auto heads = static_cast<double>(qwen->num_attention_heads + qwen->num_key_value_heads);
    return 2 * static_cast<double>(qwen->hidden_size * qwen->used_layers()) *
           (2 * heads * static_cast<double>(qwen->head_dim) +
            3 * static_cast<double>(qwen->intermediate_size));
  }
  const auto& text = std::get<spec::T5Spec>(encoder.config);
  const auto inner = static_cast<double>(text.d_kv * text.num_heads);
  const double per_layer = static_cast<double>(text.d_model) *
                           (4 * inner + (text.gated_gelu ? 3 : 2) * static_cast<double>(text.d_ff));
  return 2 * per_layer * static_cast<double>(text.num_layers);
}

/// Returns the FLOPs of a vision tower for one picture.
double vision_flops(const spec::QwenVisionSpec& vision, spec::PixelSize picture) {
  if (picture.height < 1) return 0;
  const auto size = spec::seen_size(vision, picture);
  const auto side = static_cast<double>(vision.patch_size);
  const auto width = static_cast<double>(vision.hidden_size);
  const auto patches =
      static_cast<double>(size.height) / side * (static_cast<double>(size.width) / side);
  const auto window = std::pow(static_cast<double>(vision.window_size) / side, 2);
  const auto merged = width * std::pow(static_cast<double>(vision.spatial_merge_size), 2);
  const auto whole = static_cast<double>(vision.fullatt_block_indexes.size());
  const auto blocks = static_cast<double>(vision.depth);
  const double block = width * (4 * width + 3 * static_cast<double>(vision.intermediate_size));
  const double seen = (blocks - whole) * std::min(window, patches) + whole * patches;
  const double merger = width * (merged + static_cast<double>(vision.out_hidden_size));
  return patches * (2 * blocks * block + 4 * width * seen + 2 * merger +
                    2 * width * static_cast<double>(vision.patch_values()));
}

/// Width of one attention to the text by all tokens that costs what all of a block do.
double cross_width(const ModelShape& model) {
  if (model.levels.empty()) return model.width;
  double width = 0;
  for (const auto& level : model.levels)
    width += level.share * level.width * level.attentions;
  return width;
}

/// Costs of the blocks alone, in FLOPs or, where rates are known, in seconds.
std::vector<double> costs_of_blocks(const ModelShape& model, double tokens,
                                    const WorkRates& rates) {
  const double text = model.text_tokens;
  const double keys = model.joint ? tokens + text : tokens;
  const double cross = model.joint ? 0 : 4 * tokens * cross_width(model) * text;
  std::vector<double> costs;
  for (std::size_t block = 0; block < static_cast<std::size_t>(model.layers); ++block) {
    const double seen = model.without_text.empty() || !model.without_text.at(block) ? keys : tokens;
    const double products = 2 * seen *
                            (model.weights_of_blocks.empty() ? model.weights_per_block
                                                             : model.weights_of_blocks.at(block));
    double attention = 4 * seen * model.width * seen + cross;
    if (!model.picture_attentions.empty() && model.picture_attentions.at(block))
      attention += 4 * tokens * model.width * tokens;
    if (!rates.known()) {
      costs.push_back(products + attention);
      continue;
    }
    const double moved = kActivationsPerToken * keys * model.width * rates.element;
    costs.push_back(products / rates.products + attention / rates.attention +
                    moved / rates.bandwidth + model.operations_per_block * rates.launch);
  }
  return costs;
}

/// Operations of a transformer's block: seven products, two attentions, two modulated norms, one
/// sum; the rest is fused into these.
constexpr int kOperationsOfTransformer = 12;

/// Adds a U-Net, or a ControlNet, which is computed in `part` of the steps.
void add_levels(ModelShape& shape, const spec::UNetSpec& unet, double part) {
  using Kind = spec::UNetSite::Kind;
  double share = 1;
  std::size_t level = 0;
  double operations = 0;
  double layers = 0;
  for (const auto& work : spec::work_of(unet)) {
    if (level == shape.levels.size())
      shape.levels.push_back({share, static_cast<double>(work.channels), 0, 0});
    auto& own = shape.levels[level++];
    own.weights += part * work.weights;
    own.attentions += part * work.attentions;
    shape.elementwise_per_block += part * share * work.elementwise / shape.width;
    operations += kOperationsOfTransformer * work.attentions;
    share /= 4;
  }
  for (const auto& site : spec::sites_of(unet)) {
    const auto width = static_cast<double>(site.width);
    if (site.kind == Kind::attention)
      shape.told_per_position += part * 2 * width / std::pow(4, site.level);
    if (site.kind == Kind::conv)
      shape.told_per_column += part * 2 * width / std::pow(2, site.level);
    if (site.kind != Kind::attention) ++operations;
    ++layers;
  }
  shape.operations_per_block += static_cast<int>(std::lround(part * operations));
  shape.telling_layers += part * layers;
}

/// Returns the part of the steps in which a ControlNet counts; all, where their number is not
/// known.
double part_of_steps(const wire::ImageRequest& request, std::size_t net) {
  if (request.steps == 0) return 1;
  int steps = 0;
  for (int step = 0; step < request.steps; ++step)
    steps += wire::control_counts(request, net, step) ? 1 : 0;
  return static_cast<double>(steps) / request.steps;
}

}  // namespace

ModelShape shape_of(const spec::ModelSpec& model, const wire::ImageRequest& request) {
  const auto& transformer = model.transformer;
  const auto width = static_cast<double>(transformer.inner_dim());
  ModelShape shape;
  shape.layers = static_cast<int>(transformer.num_layers);
  shape.width = width;
  shape.skip_from = transformer.skip_from;
  shape.heads = static_cast<int>(transformer.num_attention_heads);
  shape.joint = transformer.joint;
  double sums = 0;
  for (const auto& block : transformer.blocks) {
    shape.weights_of_blocks.push_back(block.weights);
    shape.picture_attentions.push_back(block.picture_attention);
    shape.without_text.push_back(block.without_text);
    shape.weights_per_block += block.weights / shape.layers;
    shape.caption_weights_per_block += block.caption_weights / shape.layers;
    sums += block.picture_sums + block.all_sums;
  }
  shape.sums_per_block = sums / shape.layers;
  shape.stored_per_block =
      static_cast<double>(spec::kept_elements(transformer, {.last_block = shape.layers}) -
                          spec::kept_elements(transformer, {})) /
      shape.layers;
  const auto pixels = static_cast<double>(transformer.patch_size * transformer.patch_size);
  const auto channels = static_cast<double>(transformer.in_channels);
  const auto beside = static_cast<double>(transformer.beside_channels);
  shape.embedding_flops = 2 * (channels + beside) * pixels * width;
  shape.projection_flops = 2 * static_cast<double>(transformer.out_channels) * pixels * width +
                           kSamplerFlops * channels * pixels;
  shape.edited_tokens = static_cast<int>(edited_tokens(request, model));
  shape.text_tokens = static_cast<int>(transformer.caption_tokens(prompt_tokens(request, model))) +
                      shape.edited_tokens;
  shape.operations_per_block = kOperationsOfTransformer;
  if (const auto* unet = transformer.unet()) {
    shape.operations_per_block = 0;
    shape.elementwise_per_block = 0;
    add_levels(shape, *unet, 1);
    for (std::size_t net = 0; net < model.controlnets.size(); ++net)
      add_levels(shape, model.controlnets[net].network.network, part_of_steps(request, net));
  }
  const auto decoder = cost_of(model.vae, spec::VaeHalf::decoder);
  shape.decoder_flops = decoder.flops;
  if (model.makes_videos())  // three frames of weights; most of it at the full number of frames
    shape.decoder_flops *= 3.0 * static_cast<double>(model.video_vae->frame_factor());
  shape.decoder_convolutions = decoder.convolutions;
  const auto encoder = cost_of(model.vae, spec::VaeHalf::encoder);
  shape.encoder_flops = encoder.flops;
  shape.encodes_beside = model.inputs.beside != spec::BesideLatents::none;
  const auto scale = static_cast<double>(model.vae.scale_factor());
  for (const auto& size : edited_sizes(request, model))
    shape.edited_pixels.push_back(static_cast<double>(size.height * size.width) / (scale * scale));
  if (model.vision)
    shape.vision_flops =
        static_cast<double>(transformer.seen_tokens) * plain_flops(model.vision->config);
  // Each frame goes through three frames of weights.
  const auto frame = static_cast<double>(request.height) * request.width / (scale * scale);
  shape.edited_pixels.insert(shape.edited_pixels.end(),
                             static_cast<std::size_t>(3 * given_frames(request, model)), frame);
  shape.encoder_convolutions = encoder.convolutions;
  // The attention is over all of a patch's positions, as queries and as keys.
  const auto patch = static_cast<double>(model.vae.latent_patch * model.vae.latent_patch);
  shape.vae_attention_width =
      model.vae.mid_block_add_attention
          ? patch * patch * static_cast<double>(model.vae.block_out_channels.back())
          : 0;
  for (const auto& text : model.text_encoders) {
    shape.text_encoder_flops.push_back(text_flops(text));
    if (const auto* vision = text.vision())
      for (const auto& image : request.images)
        shape.seen_flops +=
            vision_flops(*vision, spec::edited_size(model, {image.height, image.width}).seen);
  }
  shape.text_flops =
      std::accumulate(shape.text_encoder_flops.begin(), shape.text_encoder_flops.end(), 0.0);
  return shape;
}

JobShape shape_of(const Plan& plan) {
  JobShape shape;
  shape.method = plan.request.method;
  shape.predict = plan.request.kv == KvUse::predict;
  shape.dtype = plan.request.dtype;
  shape.weight_dtype = plan.request.weight_dtype;
  shape.offload = plan.request.offload;
  shape.patches = plan.patches;
  shape.columns = static_cast<int>(plan.token_columns);
  shape.patch_size = static_cast<int>(plan.latent_height / plan.token_rows);
  shape.latent_channels = static_cast<int>(plan.latent_channels);
  shape.pictures = plan.picture_count();
  shape.guidance = plan.guidance;
  shape.steps = plan.request.steps;
  shape.synchronous_steps = plan.whole_steps();
  if (!plan.batch_parts.empty()) shape.most_items = plan.batch_parts.front().front().end;
  shape.encodes = plan.request.init_image_bytes > 0;
  shape.alone = plan.request.exchange == PatchExchange::naive;
  shape.tells = plan.request.exchange != PatchExchange::none && !shape.alone;
  shape.encodes_text = plan.encodes_text();
  shape.makes_pictures = plan.decodes();
  return shape;
}

Macs macs_of(const ModelShape& model, const JobShape& job) {
  const double items = job.pictures * (job.guidance ? 2 : 1);
  const auto blocks = block_costs(model, job.tokens());
  return {.step = items * std::accumulate(blocks.begin(), blocks.end(), 0.0) / 2,
          .text = items * model.text_tokens * model.layers * model.caption_weights_per_block};
}

std::vector<double> block_costs(const ModelShape& model, double tokens, const WorkRates& rates) {
  auto costs = costs_of_blocks(model, tokens, rates);
  const double speed = rates.known() ? rates.products : 1;
  costs.front() += tokens * model.embedding_flops / speed;
  costs.back() += tokens * model.projection_flops / speed;
  return costs;
}

std::vector<double> stage_weights(const ModelShape& model, double tokens,
                                  const std::vector<int>& stages, const WorkRates& rates) {
  const auto costs = costs_of_blocks(model, tokens, rates);
  const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / model.layers;
  std::vector<double> weights;
  auto first = costs.begin();
  for (const int blocks : stages) {
    weights.push_back(std::accumulate(first, first + blocks, 0.0) / mean);
    first += blocks;
  }
  return weights;
}

std::vector<int> stage_sizes(const ModelShape& model, const JobShape& job, int stages,
                             const Engine& engine, const WorkRates& rates) {
  std::vector<int> sizes;
  if (!engine.ceiling_stages) {
    for (const auto& stage : split_blocks(block_costs(model, job.tokens(), rates), stages))
      sizes.push_back(stage.blocks());
    return sizes;
  }
  const int ceiling = (model.layers + stages - 1) / stages;
  int left = model.layers;
  for (int stage = 0; stage < stages; ++stage) {
    sizes.push_back(std::min(ceiling, left));
    left -= sizes.back();
  }
  return sizes;
}

}  // namespace troupe::plan
