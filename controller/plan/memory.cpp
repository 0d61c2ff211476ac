#include "controller/plan/memory.h"

#include <algorithm>
#include <utility>

#include "controller/plan/layout.h"
#include "controller/plan/request_defaults.h"
#include "controller/plan/vae_traffic.h"
#include "models/image/limits.h"
#include "models/spec/resolution_bins.h"
#include "models/spec/transformer_facts.h"

namespace troupe::plan {

namespace {

/// Pixels for each pixel of a preview, which is decoded from latents shrunk four-fold along each
/// side.
constexpr std::uint64_t kPixelsOfPreviewPixel = 16;

/// Returns how many values of each token a cache keeps: PipeFusion the newest, DistriFusion the
/// step before as well, both one more where they extrapolate; naive patches none.
std::uint64_t kept_versions(const Plan& plan) {
  if (plan.patches.size() < 2 || plan.request.exchange == PatchExchange::naive) return 0;
  return (plan.request.method == Method::distrifusion ? 2 : 1) +
         (plan.request.kv == KvUse::predict ? 1 : 0);
}

/// Rows and columns that one actor codes at a time, in latents.
struct CodedShare {
  CodedShare(const Plan& plan, std::int64_t height)
      : rows((height + plan.vae_degree - 1) / plan.vae_degree), columns(plan.latent_width) {}
  /// The whole of a picture, or a tile of it where it is coded in tiles.
  CodedShare(const Plan& plan, const spec::VaeSpec& vae, std::int64_t height, std::int64_t width)
      : rows(height), columns(width) {
    if (!plan.request.vae_tiling) return;
    const std::int64_t tile = vae.sample_size / vae.scale_factor();
    rows = std::min(rows, tile);
    columns = std::min(columns, tile);
  }
  /// Bytes of a feature map in float32, `scale` times as large along a side.
  std::uint64_t map(std::int64_t channels, std::int64_t scale) const {
    return static_cast<std::uint64_t>(rows * columns * scale * scale * channels * 4);
  }
  /// Bytes of the larger of the maps that a layer reads and writes. A map that is doubled is read
  /// doubled.
  std::uint64_t map(const spec::VaeLayer& layer) const {
    const bool doubled = layer.kind == spec::VaeLayer::Kind::upsample;
    return std::max(map(layer.in, doubled ? layer.scale_out : layer.scale_in),
                    map(layer.out, layer.scale_out));
  }

  std::int64_t rows, columns;
};

/// Returns the rows and columns that an actor codes of a job's own picture.
CodedShare own_share(const Plan& plan, const spec::VaeSpec& vae) {
  return plan.request.vae_tiling ? CodedShare(plan, vae, plan.latent_height, plan.latent_width)
                                 : CodedShare(plan, plan.latent_height);
}

/// Returns the largest activations of one half, in bytes: three feature maps of its widest level.
std::uint64_t coder_activations(const spec::VaeSpec& vae, spec::VaeHalf half,
                                const CodedShare& share) {
  std::uint64_t largest = 0;
  for (const auto& layer : spec::layers_of(vae, half))
    largest = std::max(largest, share.map(layer));
  return 3 * largest;
}

/// Returns the activations of a video's half, in bytes. A video is coded frame by frame: three
/// feature maps of its widest level, and at each convolution over time the two frames before,
/// unless there is only one. What a level keeps of its input waits beside these.
std::uint64_t video_activations(const Plan& plan, const spec::WanVaeSpec& vae, spec::VaeHalf half) {
  using Kind = spec::VaeLayer::Kind;
  const CodedShare share(plan, plan.latent_height / vae.latent_frames(plan.request.num_frames));
  std::uint64_t kept = 0, largest = 0, input = 0, before = 0;
  for (const auto& layer : spec::layers_of(vae, half)) {
    largest = std::max(largest, share.map(layer));
    if (layer.kind == Kind::kept) {
      input = std::max(input, share.map(layer));
      before = 2 * share.map(layer);
    }
    if (vae.one_frame) continue;
    const bool over_time = layer.kind == Kind::convolution && layer.side > 1;
    if (over_time || layer.kind == Kind::residual || layer.kind == Kind::doubled_frames ||
        layer.kind == Kind::halved_frames)
      kept += 2 * share.map(layer.in, layer.scale_in);
    if (layer.kind == Kind::residual) kept += 2 * share.map(layer.out, layer.scale_out);
    // A level that halves frames adds the mean of two.
    if (layer.kind == Kind::halved_frames) kept += before;
  }
  return kept + input + 3 * largest;
}

std::uint64_t decoder_activations(const Plan& plan, const spec::ModelSpec& model) {
  return model.video_vae
             ? video_activations(plan, *model.video_vae, spec::VaeHalf::decoder)
             : coder_activations(model.vae, spec::VaeHalf::decoder, own_share(plan, model.vae));
}

/// Returns the bytes of the VAE's encoder: its weights in float32, and its activations.
std::uint64_t picture_encoder(const spec::ModelSpec& model, const CodedShare& share) {
  constexpr auto kEncoder = spec::VaeHalf::encoder;
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.video_vae ? spec::expected_tensors(*model.video_vae, kEncoder)
                                            : spec::expected_tensors(model.vae, kEncoder)) {
    std::uint64_t own = 4;
    for (const auto extent : tensor.shape)
      own *= static_cast<std::uint64_t>(extent);
    bytes += own;
  }
  return bytes + coder_activations(model.vae, kEncoder, share);
}

std::uint64_t area(std::int64_t height, std::int64_t width) {
  return static_cast<std::uint64_t>(height) * static_cast<std::uint64_t>(width);
}

/// Returns the bytes in which a picture of its own size is decoded and resized, one side after the
/// other.
std::uint64_t resized_picture(spec::PixelSize to, std::int64_t height, std::int64_t width) {
  // As models/image/resize.h chooses the side to begin with.
  const std::int64_t lower = height - to.height;
  const std::int64_t narrower = width - to.width;
  const std::uint64_t between =
      lower > 0 && lower > 2 * narrower ? area(to.height, width) : area(height, to.width);
  return models::kPictureBytesOfPixel * area(height, width) +
         3 * (between + area(to.height, to.width));
}

/// Returns the most bytes that a picture to begin with needs: it is resized, made floats of, and
/// encoded when all but these are gone; then its mask is resized. Files are there as long as they
/// are needed. Where the network is given the picture and its mask, the files wait until the
/// picture is encoded, and are then resized while the mask's pixels are there, as floats.
std::uint64_t begun_picture(const Plan& plan, const spec::ModelSpec& model) {
  const auto& request = plan.request;
  const spec::PixelSize size{request.height, request.width};
  const std::uint64_t sized = area(request.height, request.width);
  const std::uint64_t floats = 3 * sizeof(float) * sized;
  const bool again = model.inputs.beside_mask();
  return request.mask_image_bytes + (again ? request.init_image_bytes + floats / 3 : 0) +
         std::max({request.init_image_bytes +
                       resized_picture(size, request.init_image_height, request.init_image_width),
                   request.init_image_bytes + 3 * sized + 3 * floats,
                   floats + picture_encoder(model, own_share(plan, model.vae)),
                   request.mask_image_bytes == 0 ? 0
                                                 : resized_picture(size, request.mask_image_height,
                                                                   request.mask_image_width)});
}

/// Returns the most bytes that the control picture needs that stands beside the latents.
std::uint64_t control_picture(const Plan& plan, const spec::ModelSpec& model) {
  const auto& request = plan.request;
  const auto& image = request.control_images.at(0);
  const std::uint64_t floats = 3 * sizeof(float) * area(request.height, request.width);
  return std::max(image.bytes +
                      resized_picture({request.height, request.width}, image.height, image.width) +
                      3 * floats,
                  floats + picture_encoder(model, own_share(plan, model.vae)));
}

/// Returns the most bytes that pictures to edit need, which are read and encoded one at a time
/// beside the encoder's weights; the files of all are there.
std::uint64_t edited_pictures(const Plan& plan, const spec::ModelSpec& model) {
  std::uint64_t files = 0, most = 0;
  const auto scale = model.vae.scale_factor();
  for (const auto& image : plan.request.images) {
    const auto size = spec::edited_size(model, {image.height, image.width});
    const std::uint64_t floats = 3 * sizeof(float) * area(size.cut.height, size.cut.width);
    const CodedShare share(plan, model.vae, size.cut.height / scale, size.cut.width / scale);
    files += image.bytes;
    most = std::max({most, resized_picture(size.resized, image.height, image.width) + 3 * floats,
                     floats + picture_encoder(model, share)});
  }
  return files + most;
}

/// Returns the bytes in which a text encoder sees pictures to edit, beside its weights: files, and
/// the pictures as they are read one at a time; then the patches of all, with what a block makes of
/// a picture, or of the longest text.
std::uint64_t seen_pictures(const Plan& plan, const spec::ModelSpec& model,
                            const spec::TextEncoderSpec& encoder) {
  const auto* vision = encoder.vision();
  if (!vision) return 0;
  const std::uint64_t size = element_bytes(plan.request.dtype);
  const std::uint64_t width = vision->hidden_size, wide = vision->intermediate_size;
  std::uint64_t files = 0, read = 0, kept = 0, block = 0;
  for (const auto& image : plan.request.images) {
    if (image.height == 0) continue;  // not told yet
    const auto seen = spec::edited_size(model, {image.height, image.width}).seen;
    const auto sized = spec::seen_size(*vision, seen);
    const std::uint64_t patches =
        area(sized.height, sized.width) / area(vision->patch_size, vision->patch_size);
    files += image.bytes;
    read = std::max(read, resized_picture(seen, image.height, image.width));
    kept += 3 * area(seen.height, seen.width) +
            patches * (vision->patch_values() * sizeof(float) + width * size);
    block = std::max(block, patches * (4 * width + 2 * wide) * (size + sizeof(float)) / 2);
  }
  const auto& text = std::get<spec::QwenTextSpec>(encoder.config);
  const std::uint64_t tokens = prompt_tokens(plan.request, model);
  block = std::max(
      block, tokens * size *
                 static_cast<std::uint64_t>(4 * text.hidden_size + 2 * text.intermediate_size));
  return files + std::max(read, kept + block);
}

/// Returns the most bytes that the frames which a video is given need: they are read one at a time,
/// and encoded together when only their pixels are there.
std::uint64_t frame_pictures(const Plan& plan, const spec::ModelSpec& model) {
  const auto& request = plan.request;
  const std::uint64_t floats = 3 * sizeof(float) * area(request.height, request.width);
  std::uint64_t files = 0, most = 0;
  for (const auto& image : {request.images.front(), request.last_image}) {
    files += image.bytes;
    most =
        std::max(most, resized_picture({request.height, request.width}, image.height, image.width));
    if (model.vision && image.height > 0)
      most = std::max(most, resized_picture(spec::seen_size(model.vision->pictures,
                                                            {image.height, image.width}),
                                            image.height, image.width));
  }
  // Latents of the frames, and the channels that stand beside the job's own latents.
  const auto latents = static_cast<std::uint64_t>(
      sizeof(float) *
      (plan.latent_channels * model.latent_frames(given_frames(request, model)) *
           (plan.latent_height / model.latent_frames(request.num_frames)) +
       model.transformer.beside_channels * plan.latent_height) *
      plan.latent_width);
  constexpr auto kHalf = spec::VaeHalf::encoder;
  return files + latents +
         std::max(most + 3 * floats,
                  3 * floats + sizeof(float) * spec::kept_elements(*model.video_vae, kHalf) +
                      video_activations(plan, *model.video_vae, kHalf));
}

/// Sizes of a rank's part of a transformer, from which its bytes follow.
struct StagePart {
  StagePart(const Plan& plan, const spec::ModelSpec& model, const Layout& layout,
            const mesh::Coordinates& at)
      : transformer(model.transformer),
        at(at),
        stage(plan.stages[at.pp]),
        images(plan.images[at.dp].end - plan.images[at.dp].begin),
        batch(images * plan.branches_per_actor()),
        size(element_bytes(plan.request.dtype)),
        tokens(plan.token_rows * plan.token_columns),
        text(transformer.joint_tokens(prompt_tokens(plan.request, model)) +
             edited_tokens(plan.request, model)),
        heads(heads_of(static_cast<int>(transformer.num_attention_heads), plan.degrees, at.tp,
                       at.ulysses)),
        attentions(transformer.attentions_before(stage.last_block) -
                   transformer.attentions_before(stage.first_block)),
        own_image_tokens(layout.whole[mesh::sequence_rank(plan.degrees, at)] * plan.token_columns) {
    own_tokens = own_image_tokens + spec::text_share(static_cast<std::int64_t>(text), -1,
                                                     {mesh::sequence_rank(plan.degrees, at),
                                                      plan.degrees.ring, plan.degrees.ulysses},
                                                     false)
                                        .size();
  }
  /// Returns the bytes of keys and values of so many tokens, in all attentions of the stage.
  std::uint64_t kv(std::uint64_t count) const {
    return attentions * 2 * batch * transformer.attention_head_dim * size * heads * count;
  }

  const spec::TransformerSpec& transformer;
  mesh::Coordinates at;
  const Stage& stage;
  std::uint64_t images, batch;
  std::uint64_t size;    // of an element
  std::uint64_t tokens;  // of the picture
  std::uint64_t text;    // tokens that the blocks attend to beside the picture's
  std::uint64_t heads, attentions;
  std::uint64_t own_image_tokens,
      own_tokens = 0;  // of this rank; the latter with those of the text
};

/// Returns how products keep their weights. What a LoRA adds to is unpacked, at most everything.
spec::KeptAs kept_as(const Plan& plan) {
  if (plan.request.weight_dtype != WeightChoice::as_computed) return spec::KeptAs::quantized;
  return plan.request.loras.empty() ? spec::KeptAs::stored : spec::KeptAs::computed;
}

/// `transformer`: that of the part, or a second one of its shape.
std::uint64_t stage_weights(const Plan& plan, const StagePart& part,
                            const spec::TransformerSpec& transformer) {
  const auto in_memory =
      plan.request.offload == OffloadChoice::blocks ? spec::streamed_bytes : spec::kept_bytes;
  return in_memory(transformer,
                   {.first_block = part.stage.first_block,
                    .last_block = part.stage.last_block,
                    .embeds = part.at.pp == 0,
                    .projects = part.at.pp == plan.degrees.pp - 1,
                    .shard = part.at.tp,
                    .shards = plan.degrees.tp},
                   part.size, kept_as(plan));
}

/// Returns what a stage makes of the text once a job, in bytes. The pooled text conditions every
/// stage; a joint model's tokens enter at the first one.
std::uint64_t caption_bytes(const Plan& plan, const StagePart& part) {
  const auto& transformer = part.transformer;
  const std::uint64_t tokens = transformer.caption_tokens(plan.request.max_sequence_length);
  std::uint64_t bytes = part.batch * part.size * transformer.pooled_width;
  if (transformer.joint)
    return bytes +
           (part.at.pp == 0 ? part.batch * part.size * part.text * transformer.caption_width : 0);
  const std::uint64_t heads = heads_of(static_cast<int>(transformer.num_attention_heads),
                                       {.tp = plan.degrees.tp}, part.at.tp, 0);
  bytes += part.stage.blocks() * 2 * part.batch * transformer.attention_head_dim * part.size *
           tokens * heads;
  // What a vision tower saw is the same for all items of a batch.
  const auto seen = static_cast<std::uint64_t>(transformer.seen_tokens);
  bytes += part.stage.blocks() * 2 * transformer.attention_head_dim * part.size * seen * heads;
  // Shards keep sums of squares of the text's keys.
  if (plan.degrees.tp > 1 && transformer.blocks.front().norms_across_heads)
    bytes += part.stage.blocks() * (part.batch * tokens + seen) * sizeof(float);
  return bytes;
}

/// Returns what a stage keeps from step to step, in bytes.
std::uint64_t stage_kept(const Plan& plan, const StagePart& part) {
  std::uint64_t bytes =
      part.kv(kept_versions(plan) * (part.tokens + part.text)) + caption_bytes(plan, part);
  // What the blocks added last, and at the first stage what steps are compared by.
  if (plan.request.step_cache != StepCacheRule::none)
    bytes += (part.at.pp == 0 ? 2 : 1) * part.batch * part.own_image_tokens *
             part.transformer.inner_dim() * part.size;
  return bytes;
}

/// Returns a stage's activations in bytes: hidden states, the feed-forward's four-fold ones, q,k,v,
/// what blocks have left for later ones, and transfers under way.
std::uint64_t stage_activations(const Plan& plan, const StagePart& part) {
  const auto edge_before = [&](int block) {
    return static_cast<std::uint64_t>(
        part.transformer.edge_width(part.stage.first_block, part.stage.last_block, block));
  };
  std::uint64_t widest = 0;
  for (int block = part.stage.first_block; block <= part.stage.last_block; ++block)
    widest = std::max(widest, edge_before(block));
  const auto edge =
      std::max(edge_before(part.stage.first_block), edge_before(part.stage.last_block));
  const std::uint64_t width = part.transformer.inner_dim();
  std::uint64_t bytes =
      part.batch * part.own_tokens * part.size * (7 * width + widest + 2 * edge) +
      4 * part.images * plan.latent_channels * plan.latent_height * plan.latent_width * 4;
  // What stands beside the latents, as it came and as it is joined to them.
  if (part.at.pp == 0)
    bytes += (4 + 2 * part.size) * part.batch * part.transformer.beside_channels *
             plan.latent_height * plan.latent_width;
  // DistriFusion's blocks of other ring ranks lie beside the kept ones until the next step.
  const auto ring = static_cast<std::uint64_t>(plan.degrees.ring);
  if (plan.request.method == Method::distrifusion && ring > 1 &&
      plan.request.exchange != PatchExchange::naive)
    bytes += part.kv(part.tokens + part.text) * (ring - 1) / ring;
  return bytes;
}

ActorMemory stage_memory(const Plan& plan, const spec::ModelSpec& model, const StagePart& part) {
  ActorMemory own;
  own.weights = stage_weights(plan, part, part.transformer);
  if (model.second_transformer) {
    auto second = part.transformer;
    second.kept = model.second_transformer->kept;
    own.second = stage_weights(plan, part, second);
    // Their files may be packed differently: the larger one is what an actor of either needs.
    if (own.second > own.weights) std::swap(own.second, own.weights);
  }
  own.kv = stage_kept(plan, part);
  // The text waits for the second transformer.
  if (model.second_transformer)
    own.kv += part.batch * part.size * part.transformer.caption_width *
              part.transformer.caption_tokens(plan.request.max_sequence_length);
  own.activations = stage_activations(plan, part);
  return own;
}

/// Adds what a rank holds of the text encoders and the autoencoder. `decoder`: bytes of its
/// weights.
void add_ends(ActorMemory& own, const Plan& plan, const spec::ModelSpec& model,
              std::uint64_t decoder, int rank, int dp) {
  const std::uint64_t size = element_bytes(plan.request.dtype);
  const auto encoders = plan.encoder_ranks(dp);
  for (std::size_t i = 0; plan.encodes_text() && i < encoders.size(); ++i) {
    if (encoders[i] != rank) continue;
    const auto& encoder = model.text_encoders[i];
    own.text = std::max(
        own.text, spec::encoder_peak_bytes(encoder, size) + seen_pictures(plan, model, encoder));
    own.encoders += spec::encoder_bytes(encoder, size);
  }
  // What projects the text for the second transformer may be read for that alone.
  if (model.second_transformer && rank == plan.text_rank(dp)) {
    const mesh::Coordinates at = mesh::Mesh(plan.degrees).coordinates(rank);
    own.text = std::max(
        own.text, spec::kept_bytes(model.transformer,
                                   {.embeds = true, .shard = at.tp, .shards = plan.degrees.tp},
                                   size, spec::KeptAs::computed));
  }
  if (model.vision && rank == plan.decode_rank(dp)) {
    own.text = std::max(own.text, spec::vision_peak_bytes(*model.vision, size));
    own.encoders += spec::vision_bytes(*model.vision, size);
  }
  const auto decoders = plan.decoders(dp);
  if (std::find(decoders.begin(), decoders.end(), rank) == decoders.end()) return;
  // One after the other, and gone before the first step.
  if (plan.request.init_image_bytes > 0) own.picture = begun_picture(plan, model);
  if (model.inputs.beside == spec::BesideLatents::control_picture)
    own.picture = std::max(own.picture + plan.request.control_images.at(0).bytes,
                           control_picture(plan, model));
  if (model.inputs.images == spec::PictureRole::edited)
    own.picture = std::max(own.picture, edited_pictures(plan, model));
  if (given_frames(plan.request, model) > 0) own.picture = frame_pictures(plan, model);
  if (!plan.needs_decoder()) return;
  own.decoder = decoder;
  const auto activations = decoder_activations(plan, model);
  own.vae = decoder + (plan.decodes() ? activations : activations / kPixelsOfPreviewPixel);
}

}  // namespace

std::uint64_t ActorMemory::peak() const {
  return weights + std::max({kv + activations, text, picture, vae + activations});
}

std::vector<ActorMemory> estimate_memory(const Plan& plan, const spec::ModelSpec& model) {
  const auto decoder = spec::decoder_bytes(model, coded_bytes(plan, model.vae));
  const auto layout =
      layout_of(plan.request.method, plan.patches, plan.degrees.ring, plan.degrees.ulysses);
  const mesh::Mesh mesh(plan.degrees);
  std::vector<ActorMemory> memory(plan.degrees.world());
  for (int rank = 0; rank < plan.degrees.world(); ++rank) {
    const auto at = mesh.coordinates(rank);
    memory[rank] = model.transformer.unet() ? unet_memory(plan, model, rank)
                                            : stage_memory(plan, model, {plan, model, layout, at});
    add_ends(memory[rank], plan, model, decoder, rank, at.dp);
  }
  return memory;
}

namespace {

using Bytes = std::uint64_t;
using Kind = spec::UNetSite::Kind;

bool ever_stale(const Plan& plan) {
  return plan.patches.size() > 1 && plan.synchronous_steps < plan.request.steps &&
         plan.request.exchange != PatchExchange::naive;
}

/// True when the layer's values of an older step are kept. The first convolution's rows are of this
/// step in every step; norms are kept where their mode uses older ones.
bool is_kept(const Plan& plan, const spec::UNetSite& site, bool first) {
  if (site.kind == Kind::norm)
    return plan.request.group_norm == GroupNormMoments::corrected ||
           plan.request.group_norm == GroupNormMoments::stale;
  return !first;
}

Bytes kept_bytes(const Plan& plan, const UNetShares& shares, Bytes batch) {
  if (!ever_stale(plan)) return 0;
  // In the last step nothing is told any more; told values arrive in one of two sets of buffers.
  const bool told = plan.request.exchange == PatchExchange::stale &&
                    plan.request.steps - plan.synchronous_steps > 1;
  Bytes kept = 0;
  for (std::size_t i = 0; i < shares.sites().size(); ++i) {
    const auto& site = shares.sites()[i];
    if (!is_kept(plan, site, i == 0)) continue;
    for (int patch = 0; patch < shares.patches(); ++patch) {
      const Bytes bytes = shares.bytes(site, patch, batch);
      if (!told || plan.degrees.sp() == 1) {
        kept += bytes;
        continue;
      }
      kept += 2 * aligned(bytes);
    }
  }
  return kept;
}

/// Returns the bytes of the text's keys and values in every attention of a U-Net, or a ControlNet.
Bytes text_bytes(const Plan& plan, const spec::ModelSpec& model, const spec::UNetSpec& network) {
  Bytes elements = 0;
  for (const auto width : spec::text_attentions(network))
    elements += 2 * model.transformer.caption_tokens(plan.request.max_sequence_length) * width;
  return elements * element_size(plan);
}

/// Returns the bytes of the residuals of a ControlNet.
Bytes residual_bytes(const Plan& plan, const spec::ControlNetSpec& net, Bytes batch, Bytes rows) {
  Bytes elements = 0;
  Bytes positions = rows * static_cast<Bytes>(plan.latent_width);
  for (std::size_t l = 0; l < net.network.levels.size(); ++l, positions = (positions + 3) / 4)
    elements += positions * net.network.levels[l].channels * (net.network.levels[l].layers + 1);
  return batch * elements * element_size(plan);
}

/// Adds what ControlNets keep at a rank with `rows` of the latents, and compute with.
void add_controls(ActorMemory& own, const Plan& plan, const spec::ModelSpec& model, Bytes batch,
                  Bytes rows) {
  const Bytes size = element_size(plan);
  const auto as = plan.request.weight_dtype != WeightChoice::as_computed ? spec::KeptAs::quantized
                                                                         : spec::KeptAs::stored;
  const Bytes pixels =
      static_cast<Bytes>(plan.request.height) * static_cast<Bytes>(plan.request.width);
  Bytes residuals = 0;
  Bytes embedding = 0;
  // Every rank reads the pictures, one at a time; their files are there while others are encoded.
  Bytes files = 0, read = 0;
  if (!model.controlnets.empty())
    for (const auto& image : plan.request.control_images) {
      files += image.bytes;
      read = std::max(read, resized_picture({plan.request.height, plan.request.width}, image.height,
                                            image.width));
    }
  own.picture = files + std::max(own.picture, read);
  for (const auto& net : model.controlnets) {
    own.weights += net.kept.bytes({.last_block = 1}, size, as);
    own.kv += batch * text_bytes(plan, model, net.network.network) +
              kept_bytes(plan, UNetShares(plan, net.network.network), batch) +
              rows * plan.latent_width * net.network.network.levels.front().channels * size;
    residuals = std::max(residuals, residual_bytes(plan, net.network, batch, rows));
    // The first convolutions' values at the picture's own size, and the picture.
    embedding = std::max<Bytes>(
        embedding, pixels * (2 * net.network.embedding_widths.front() * size + 2 * 3 * 4));
  }
  // One ControlNet's residuals are computed beside the sum of the others'.
  own.activations += residuals * std::min<std::size_t>(2, model.controlnets.size());
  own.activations = std::max(own.activations, embedding);
}

/// Returns the bytes of the skipped feature maps of the way down, and of the widest layer's own: an
/// upper estimate for `rows` of the latents.
Bytes activation_bytes(const Plan& plan, const spec::UNetSpec& unet, Bytes batch, Bytes rows) {
  Bytes skipped = 0;
  Bytes widest = 0;
  Bytes positions = rows * static_cast<Bytes>(plan.latent_width);
  for (std::size_t l = 0; l < unet.levels.size(); ++l, positions = (positions + 3) / 4) {
    const auto& level = unet.levels[l];
    const Bytes below = l + 1 < unet.levels.size() ? unet.levels[l + 1].channels : level.channels;
    skipped += positions * level.channels * (level.layers + 1);
    const bool attends = level.down_transformers > 0 || level.up_transformers > 0;
    // Joined channels, normalised in float32 and back; or the gated feed-forward's.
    widest = std::max(widest, positions * std::max<Bytes>(4 * (below + level.channels),
                                                          attends ? 14 * level.channels : 0));
  }
  return batch * (skipped + widest) * element_size(plan);
}

}  // namespace

ActorMemory unet_memory(const Plan& plan, const spec::ModelSpec& model, int rank) {
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  const auto& facts = model.transformer;
  const auto& unet = *facts.unet();
  const Bytes images = plan.images[at.dp].end - plan.images[at.dp].begin;
  const Bytes batch = images * plan.branches_per_actor();
  const Bytes size = element_size(plan);
  const int sequence = mesh::sequence_rank(plan.degrees, at);
  const UNetShares shares(plan, unet);
  ActorMemory own;
  own.weights = spec::kept_bytes(facts, {.last_block = 1, .embeds = true, .projects = true}, size,
                                 kept_as(plan));
  own.kv = batch * (facts.pooled_width * size + text_bytes(plan, model, unet)) +
           kept_bytes(plan, shares, batch);
  const auto& rows = plan.micro_steps.front().of_rank[sequence];
  // What the inner layers put out last, and what steps are compared by.
  if (plan.request.step_cache != StepCacheRule::none)
    own.kv += batch * Bytes(rows.end - rows.begin) * plan.latent_width *
              (unet.inner_channels() + unet.levels.front().channels) * size;
  own.activations = activation_bytes(plan, unet, batch, rows.end - rows.begin) +
                    4 * images * plan.latent_channels * plan.latent_height * plan.latent_width * 4 +
                    (4 + 2 * size) * batch * Bytes(facts.beside_channels) * plan.latent_height *
                        plan.latent_width;
  // One attention's keys and values of everybody, while a synchronous step computes it.
  Bytes gathered = 0;
  for (const auto& site : shares.sites()) {
    Bytes one = 0;
    for (int patch = 0; site.kind == Kind::attention && patch < shares.patches(); ++patch)
      one += shares.bytes(site, patch, batch);
    gathered = std::max(gathered, one);
  }
  if (plan.degrees.sp() > 1 && plan.request.exchange != PatchExchange::naive)
    own.activations += gathered;
  add_controls(own, plan, model, batch, rows.end - rows.begin);
  return own;
}

}  // namespace troupe::plan
