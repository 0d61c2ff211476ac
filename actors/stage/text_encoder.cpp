#include "actors/stage/text_encoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "models/text/special_tokens.h"

namespace troupe::actors {
namespace {

/// Returns a copy of a tensor in memory of its own: a view would keep the whole memory that it
/// views.
at::Tensor copied_to_host(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

template <class... Calls>
struct OneOf : Calls... {
  using Calls::operator()...;
};

models::WeightStore adapted(const spec::TextEncoderSpec& spec, const models::LoraWeights& loras) {
  models::WeightStore weights(spec.weights);
  loras.adapt(weights, spec.component);
  return weights;
}

}  // namespace

std::uint64_t EncodedPrompt::bytes() const {
  std::uint64_t bytes = cut.size();
  for (const auto* tensor : {&states, &pooled})
    if (tensor->defined()) bytes += tensor->nbytes();
  return bytes;
}

const EncodedPrompt* PromptCache::find(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  uses_.splice(uses_.begin(), uses_, found->second.use);
  return &found->second.prompt;
}

void PromptCache::keep(const Key& key, const EncodedPrompt& prompt) {
  // The text is here twice, once for its order of use.
  const auto bytes = prompt.bytes() + 2 * (sizeof(Key) + key.text.size()) + sizeof(Entry);
  if (bytes > most_bytes_) return;
  if (const auto old = entries_.find(key); old != entries_.end()) drop(old);
  while (bytes_ + bytes > most_bytes_)
    drop(entries_.find(uses_.back()));
  uses_.push_front(key);
  entries_[key] = {
      {copied_to_host(prompt.states), copied_to_host(prompt.pooled), prompt.length, prompt.cut},
      bytes,
      uses_.begin()};
  bytes_ += bytes;
}

void PromptCache::drop(std::map<Key, Entry>::iterator entry) {
  bytes_ -= entry->second.bytes;
  uses_.erase(entry->second.use);
  entries_.erase(entry);
}

namespace {

/// Returns what of a cut end is the prompt's, without the text that the pipeline puts after it.
std::string of_prompt(const std::string& cut, const std::string& after) {
  if (after.empty() || !cut.ends_with(after)) return after.ends_with(cut) ? std::string() : cut;
  return cut.substr(0, cut.size() - after.size());
}

/// Refuses a vocabulary in which the end of a frame has another number of tokens than its pipeline
/// counts on.
void require_length(const spec::TextEncoderSpec& spec, std::int64_t tokens) {
  if (tokens == spec.frame.kept_after) return;
  throw std::runtime_error("[text_encoder] " + spec.tokenizer.folder.string() +
                           ": the end of the template has " + std::to_string(tokens) +
                           " tokens, and the pipeline counts on " +
                           std::to_string(spec.frame.kept_after));
}

void replace_first(std::string& text, std::string_view from, const std::string& to) {
  if (const auto at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

/// Returns the text of picture `number`, in which its place is repeated for each of its tokens.
std::string picture_text(std::string text, std::size_t number, std::int64_t tokens) {
  replace_first(text, "{}", std::to_string(number));
  std::string places;
  for (std::int64_t i = 0; i < tokens; ++i)
    places += spec::kPicturePlace;
  replace_first(text, spec::kPicturePlace, places);
  return text;
}

}  // namespace

bool cuts_padding(spec::TextUse use) {
  return use == spec::TextUse::masked_states || use == spec::TextUse::zeroed_states ||
         use == spec::TextUse::once_padded_states || use == spec::TextUse::penultimate_states;
}

LearnedWords::LearnedWords(const std::vector<models::TextualInversion>& from, std::size_t encoder) {
  std::vector<at::Tensor> parts;
  for (const auto& inversion : from) {
    const auto& own = inversion.of_encoder.at(encoder);
    if (own.count == 0) continue;
    for (auto& token : inversion.tokens(encoder))
      tokens.push_back(std::move(token));
    parts.push_back(at::tensor(own.values).view({own.count, -1}));
  }
  if (!parts.empty()) rows = at::cat(parts);
}

TextEncoder::TextEncoder(const spec::TextEncoderSpec& spec, const models::LoraWeights& loras,
                         at::ScalarType dtype, at::Device device)
    : spec_(spec),
      tokenizer_(models::load_tokenizer(spec)),
      model_(std::visit(
          OneOf{[&](const spec::T5Spec& config) -> Model {
                  return models::T5Encoder(config, adapted(spec, loras), dtype, device);
                },
                [&](const spec::ClipSpec& config) -> Model {
                  return models::ClipTextModel(config, adapted(spec, loras), dtype, device);
                },
                [&](const spec::BertSpec& config) -> Model {
                  return models::BertModel(config, adapted(spec, loras), dtype, device);
                },
                [&](const spec::QwenTextSpec& config) -> Model {
                  return models::QwenTextModel(config, adapted(spec, loras), dtype, device);
                }},
          spec.config)) {}

void TextEncoder::let_stay() {
  std::visit([](auto& model) { model.let_stay(); }, model_);
}

std::uint64_t TextEncoder::bytes() const {
  return std::visit([](const auto& model) { return model.bytes(); }, model_);
}

std::vector<EncodedPrompt> TextEncoder::encode(const std::vector<std::string>& captions,
                                               std::int64_t most, const Tick& tick,
                                               const LearnedWords& learned,
                                               const SeenPictures& pictures) const {
  using spec::TextUse;
  const auto count = [&](int, int) { tick(); };
  std::vector<EncodedPrompt> prompts(captions.size());
  auto all_tokens = tokenizer_;
  models::LearnedRows rows;
  if (!learned.tokens.empty()) {
    auto& own = std::get<models::ClipTokenizer>(all_tokens);
    own = own.with_tokens(learned.tokens);
    rows = {own.added().id(learned.tokens.front()), learned.rows};
  }
  std::int64_t dropped = spec_.frame.dropped;
  std::vector<models::VisionPatches> patches;
  auto frame = spec_.frame;
  if (const auto* vision = spec_.vision()) {
    for (const auto& rgb : pictures.rgb) {
      patches.push_back(models::vision_patches(*vision, rgb));
      const auto merged = vision->spatial_merge_size * vision->spatial_merge_size;
      frame.before += picture_text(frame.picture, patches.size(),
                                   patches.back().rows * patches.back().columns / merged);
      tick();
    }
  }
  const auto tokens = std::visit(
      [&](const auto& tokenizer) {
        if constexpr (std::is_same_v<decltype(tokenizer), const models::QwenTokenizer&>) {
          if (spec_.frame.spells_quotes) {
            const auto& before = spec_.frame.before;
            dropped = std::ssize(tokenizer.encode(before));
            return tokenizer.tokenize_spelled(before, captions, most + dropped);
          }
        }
        auto texts = captions;
        if (spec_.textual_inversion)
          for (auto& text : texts)
            text = tokenizer.added().with_all_vectors(std::move(text));
        for (auto& text : texts)
          text = frame.around(text);
        if constexpr (std::is_same_v<decltype(tokenizer), const models::QwenTokenizer&>) {
          if (frame.kept_after > 0) {
            require_length(spec_, std::ssize(tokenizer.encode(frame.after)));
            return tokenizer.tokenize(texts, most + dropped, frame.after);
          }
        }
        return tokenizer.tokenize(texts, most + dropped);
      },
      all_tokens);
  const auto all = models::text_batch(tokens);
  std::vector<models::TextBatch> texts;
  for (std::size_t i = 0; i < captions.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    texts.push_back({all.ids.narrow(0, row, 1), all.mask.narrow(0, row, 1)});
    prompts[i].length = tokens.lengths[i];
    prompts[i].cut = of_prompt(tokens.cut[i], spec_.frame.after);
  }
  const auto keep_states = [&](const std::vector<at::Tensor>& states) {
    for (std::size_t i = 0; i < states.size(); ++i)
      prompts[i].states = states[i][0];
  };
  if (const auto* clip = std::get_if<models::ClipTextModel>(&model_)) {
    std::vector<at::Tensor> ids;
    for (const auto& text : texts)
      ids.push_back(text.ids);
    const auto made = clip->encode_each(ids, 1, count, rows);
    const auto shape = spec::output_shape(spec_, most);
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (shape.width > 0)
        prompts[i].states = (spec_.use == TextUse::states ? made[i].last : made[i].hidden)[0];
      if (shape.pooled > 0) prompts[i].pooled = made[i].pooled[0];
    }
  } else if (const auto* bert = std::get_if<models::BertModel>(&model_)) {
    keep_states(bert->encode_each(texts, count));
  } else if (const auto* qwen = std::get_if<models::QwenTextModel>(&model_)) {
    std::vector<models::QwenTextModel::Text> own;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto length = prompts[i].length;
      const bool cut = cuts_padding(spec_.use);
      own.push_back({cut ? texts[i].ids.narrow(1, 0, length) : texts[i].ids, length});
    }
    keep_states(qwen->encode_each(own, count, patches));
  } else {
    const bool once_padded = spec_.use == TextUse::once_padded_states;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (once_padded) prompts[i].length = std::min(prompts[i].length + 1, texts[i].ids.size(1));
      // Nobody sees what other padding becomes there, so it is not computed at all.
      if (cuts_padding(spec_.use)) texts[i].ids = texts[i].ids.narrow(1, 0, prompts[i].length);
      if (once_padded)
        texts[i].mask = texts[i].mask.narrow(1, 0, prompts[i].length);
      else if (spec_.use != TextUse::padded_states)
        texts[i].mask = at::Tensor();
    }
    keep_states(std::get<models::T5Encoder>(model_).encode_each(texts, count));
  }
  for (auto& prompt : prompts) {
    if (dropped == 0) break;
    if (prompt.length <= dropped && !spec_.frame.spells_quotes) {
      throw std::runtime_error("[text_encoder] " + spec_.tokenizer.folder.string() +
                               ": the pipeline drops the first " + std::to_string(dropped) +
                               " tokens of its template, and there are " +
                               std::to_string(prompt.length));
    }
    prompt.states = prompt.states.slice(0, dropped);
    prompt.length -= dropped;
  }
  return prompts;
}

}  // namespace troupe::actors
