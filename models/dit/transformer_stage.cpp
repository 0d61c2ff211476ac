#include "models/dit/transformer_stage.h"

#include <ATen/ATen.h>

#include <sstream>

namespace troupe::models {
namespace {

const StagePart& checked_part(const char* family, const StagePart& part, int64_t blocks) {
  std::ostringstream text;
  text << "[" << family << "] ";
  if (part.blocks.begin < 0 || part.blocks.end < part.blocks.begin || part.blocks.end > blocks) {
    text << "blocks " << part.blocks.begin << " to " << part.blocks.end << " of " << blocks;
    throw std::invalid_argument(text.str());
  }
  if (part.shard.degree < 1 || part.shard.rank < 0 || part.shard.rank >= part.shard.degree) {
    text << "shard " << part.shard.rank << " of " << part.shard.degree;
    throw std::invalid_argument(text.str());
  }
  return part;
}

}  // namespace

void refuse_shape(const char* family, const char* what, const at::Tensor& given,
                  at::IntArrayRef expected) {
  std::ostringstream text;
  text << "[" << family << "] " << what << " has shape ";
  if (given.defined()) text << given.sizes();
  text << ", expected " << expected;
  throw std::invalid_argument(text.str());
}

std::unique_ptr<CaptionCache> JointCaption::items(int64_t begin, int64_t end) const {
  const auto own = [&](const at::Tensor& of) {
    return of.defined() ? of.slice(0, begin, end) : at::Tensor();
  };
  TextLengths lengths{lengths_.tokens, {}, lengths_.references};
  const auto& all = lengths_.of_items;
  if (!all.empty()) lengths.of_items.assign(all.begin() + begin, all.begin() + end);
  return std::make_unique<JointCaption>(end - begin, own(states_), own(pooled_),
                                        std::move(lengths));
}

at::Tensor JointCaption::tokens(int64_t begin, int64_t end) const {
  return states_.slice(1, begin, end).clone(at::MemoryFormat::Contiguous);
}

int64_t JointCaption::bytes() const {
  const auto of = [](const at::Tensor& t) { return t.defined() ? t.nbytes() : 0; };
  return static_cast<int64_t>(of(states_) + of(pooled_));
}

TransformerStage::TransformerStage(const char* family, spec::TransformerFacts facts,
                                   const StagePart& part, at::ScalarType compute, at::Device device)
    : family_(family),
      facts_(std::move(facts)),
      part_(checked_part(family, part, facts_.num_layers)),
      compute_(compute),
      device_(device) {
  const auto [begin, end] = part.blocks;
  for (int block = begin; block <= end; ++block)
    edge_widths_.push_back(facts_.edge_width(begin, end, block));
}

BlockRange TransformerStage::attentions() const {
  return {static_cast<int>(facts_.attentions_before(part_.blocks.begin)),
          static_cast<int>(facts_.attentions_before(part_.blocks.end))};
}

Caption TransformerStage::project_caption(const std::vector<EncoderOutput>& text) const {
  require(part_.embeds, "text embedding");
  return caption_of(text);
}

std::unique_ptr<CaptionCache> TransformerStage::cache_caption(const Caption& caption,
                                                              const at::Tensor& mask) const {
  const auto& states = caption.states;
  const auto& pooled = caption.pooled;
  if (states.dim() != 3 || states.size(1) == 0 || states.size(2) != facts_.caption_width)
    refuse_shape(family_, "the projected caption", states, {-1, -1, facts_.caption_width});
  const bool fits = facts_.pooled_width == 0 ? !pooled.defined()
                                             : pooled.defined() && pooled.dim() == 2 &&
                                                   pooled.size(0) == states.size(0) &&
                                                   pooled.size(1) == facts_.pooled_width;
  if (!fits)
    refuse_shape(family_, "the pooled caption", pooled, {states.size(0), facts_.pooled_width});
  if (mask.sizes() != states.sizes().slice(0, 2))
    refuse_shape(family_, "the caption's mask", mask, states.sizes().slice(0, 2));
  return cache_of(caption, mask);
}

std::unique_ptr<CaptionCache> TransformerStage::cache_of(const Caption& caption,
                                                         const at::Tensor&) const {
  const int64_t batch = caption.states.size(0);
  TextLengths lengths{caption.states.size(1)};
  std::vector<at::Tensor> tokens{caption.states};
  for (const at::Tensor& latents : caption.references) {
    const PictureSize size{latents.size(2), latents.size(3)};
    lengths.references.push_back(size);
    if (part_.embeds)
      tokens.push_back(embed(latents, size, {0, size.latent_height / facts_.patch_size})
                           .expand({batch, -1, -1}));
  }
  const at::Tensor all = tokens.size() > 1 ? at::cat(tokens, 1) : caption.states;
  return std::make_unique<JointCaption>(batch, part_.embeds ? all : at::Tensor(), caption.pooled,
                                        std::move(lengths));
}

at::Tensor TransformerStage::embed(const at::Tensor& latents, PictureSize size,
                                   TokenRows rows) const {
  require(part_.embeds, "patch embedding");
  check_rows("embed", size, rows);
  const int64_t height = (rows.end - rows.begin) * facts_.patch_size;
  const int64_t channels = facts_.in_channels + facts_.beside_channels;
  if (latents.dim() != 4 || latents.size(1) != channels || latents.size(2) != height ||
      latents.size(3) != size.latent_width) {
    refuse_shape(family_, "latents", latents, {-1, channels, height, size.latent_width});
  }
  return tokens_of(on_device(latents), size, rows);
}

at::Tensor TransformerStage::embed_text(const CaptionCache& caption, int64_t begin,
                                        int64_t end) const {
  if (!facts_.joint) return DiffusionTransformer::embed_text(caption, begin, end);
  require(part_.embeds, "text embedding");
  return text_of<JointCaption>(caption).tokens(begin, end);
}

at::Tensor TransformerStage::run_blocks(at::Tensor hidden, const CallTokens& tokens,
                                        const StepCondition& condition, const CaptionCache& caption,
                                        AttentionPort& attention, TensorParallelPort& sums) const {
  const auto [begin, end] = own_blocks(tokens);
  const int64_t batch = step_of<StageStep>(condition).batch, width = edge_widths_[begin];
  int64_t count = 0;
  for (const TokenRows rows : tokens.rows)
    count += rows.end - rows.begin;
  count = tokens.text() + count * (tokens.size.latent_width / facts_.patch_size);
  if (caption.batch() != batch || hidden.sizes() != at::IntArrayRef({batch, count, width}))
    refuse_shape(family_, "hidden", hidden, {caption.batch(), count, width});
  return compute(std::move(hidden), condition, caption, {begin, end, tokens, attention, sums});
}

at::Tensor TransformerStage::step_signal(const at::Tensor& hidden, const CallTokens& tokens,
                                         const StepCondition& condition) const {
  require(part_.blocks.begin == 0 && part_.blocks.end > 0, "block 0");
  return signal_of(hidden.slice(1, tokens.text()).contiguous(), condition);
}

at::Tensor TransformerStage::project(const at::Tensor& hidden, const StepCondition& condition,
                                     PictureSize size, TokenRows rows) const {
  require(part_.projects, "output projection");
  check_rows("project", size, rows);
  const int64_t columns = size.latent_width / facts_.patch_size;
  const int64_t batch = step_of<StageStep>(condition).batch;
  const int64_t count = (rows.end - rows.begin) * columns;
  if (hidden.sizes() != at::IntArrayRef({batch, count, hidden_width()}))
    refuse_shape(family_, "hidden", hidden, {batch, count, hidden_width()});
  return prediction_of(hidden, condition, columns);
}

void TransformerStage::require_blocks(size_t given) const {
  const auto own = static_cast<size_t>(part_.blocks.end - part_.blocks.begin);
  if (given == own) return;
  throw std::invalid_argument("[" + std::string(family_) + "] values for " + std::to_string(given) +
                              " blocks, this stage has " + std::to_string(own));
}

void TransformerStage::require(bool holds, const char* what) const {
  if (!holds) throw std::logic_error("[" + std::string(family_) + "] this stage holds no " + what);
}

void TransformerStage::check_rows(const char* who, PictureSize size, TokenRows rows) const {
  const int64_t patch = facts_.patch_size;
  if (size.latent_height > 0 && size.latent_width > 0 && size.latent_height % patch == 0 &&
      size.latent_width % patch == 0 && rows.begin >= 0 && rows.begin < rows.end &&
      rows.end <= size.latent_height / patch) {
    return;
  }
  std::ostringstream text;
  text << "[" << family_ << "] " << who << ": latents of " << size.latent_height << " x "
       << size.latent_width << ", token rows " << rows.begin << " to " << rows.end
       << ", patch size " << patch;
  throw std::invalid_argument(text.str());
}

BlockRange TransformerStage::own_blocks(const CallTokens& call) const {
  const auto [first, last] = part_.blocks;
  const auto [begin, end] = call.blocks.value_or(part_.blocks);
  if (begin < first || end > last || begin > end) {
    throw std::invalid_argument("[" + std::string(family_) + "] blocks " + std::to_string(begin) +
                                " to " + std::to_string(end) + " of a stage that holds " +
                                std::to_string(first) + " to " + std::to_string(last));
  }
  return {begin - first, end - first};
}

}  // namespace troupe::models
