#include "models/text/tokenizer.h"

#include <map>
#include <stdexcept>

#include "models/spec/config.h"
#include "models/text/piece_model.h"
#include "models/text/special_tokens.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

constexpr std::int64_t kDefaultExtraIds = 100;
constexpr std::int64_t kMaxExtraIds = kMaxAddedTokens;

/// Settings in the files beside the pieces.
struct Settings {
  FolderTokens tokens{{{"pad_token", "<pad>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}};
  std::int64_t extra_ids = kDefaultExtraIds;
};

Settings read_settings(const spec::TokenizerSpec& spec) {
  Settings settings;
  if (!spec.tokenizer_config) return settings;
  const auto config = spec::ConfigReader::read(*spec.tokenizer_config);
  config.choice_or("tokenizer_class", "T5Tokenizer",
                   {"T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast"});
  settings.tokens.read_config(config);
  settings.extra_ids = config.integer_or("extra_ids", kDefaultExtraIds, 0, kMaxExtraIds);
  only_or_null(config, "add_prefix_space", true);
  only_or_null(config, "sp_model_kwargs", nlohmann::json::object());
  only_or_null(config, "add_bos_token", false);
  only_or_null(config, "add_eos_token", true);
  accept_common_settings(config);
  config.harmless({"unk_id", "legacy"});
  config.finish();
  return settings;
}

std::vector<std::string> sentinels(std::int64_t count) {
  std::vector<std::string> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back("<extra_id_" + std::to_string(i) + ">");
  return tokens;
}

}  // namespace

struct Tokenizer::Impl {
  std::filesystem::path source;
  std::unique_ptr<PieceModel> model;
  /// Ids of the sentinels of a spiece.model, which follow its pieces, the last one first.
  std::map<std::string, std::int64_t> sentinel_ids;
  AddedVocabulary added;
  std::int64_t pad_id = -1;
  std::int64_t eos_id = -1;

  std::int64_t own_id(const std::string& token) const {
    const auto found = sentinel_ids.find(token);
    return found == sentinel_ids.end() ? model->id(token) : found->second;
  }

  std::string piece(std::int64_t id) const {
    for (const auto& [token, of] : sentinel_ids)
      if (of == id) return token;
    if (const std::string token = added.content(id); !token.empty()) return token;
    if (id < 0 || id >= model->size()) {
      throw std::invalid_argument("[decode] id " + std::to_string(id) + " is not one of " +
                                  std::to_string(model->size()) + " pieces");
    }
    return model->piece(id);
  }

  void load(const spec::TokenizerSpec& spec) {
    Settings settings = read_settings(spec);
    nlohmann::json listed;
    if (spec.tokenizer_json) {
      try {
        TokenizerJson json = read_tokenizer_json(*spec.tokenizer_json);
        model = std::move(json.model);
        listed = std::move(json.added_tokens);
        source = *spec.tokenizer_json;
      } catch (const UnsupportedTokenizer&) {
        if (!spec.spiece_model) throw;
      }
    }
    const auto extra = sentinels(settings.extra_ids);
    if (!model) {
      if (!spec.spiece_model) {
        throw std::runtime_error("[load_tokenizer] neither spiece.model nor tokenizer.json");
      }
      source = *spec.spiece_model;
      model = load_sentencepiece(source);
      for (std::int64_t i = 0; i < settings.extra_ids; ++i) {
        const auto& token = extra[static_cast<std::size_t>(i)];
        if (model->id(token) < 0) sentinel_ids[token] = model->size() + settings.extra_ids - 1 - i;
      }
    }
    settings.tokens.read_folder(source.parent_path(), source, listed);
    settings.tokens.add_implied(extra);
    added = AddedVocabulary(
        settings.tokens.in_order(),
        {.size = model->size() + static_cast<std::int64_t>(sentinel_ids.size()),
         .id = [this](const std::string& token) { return own_id(token); },
         .normalize = [this](std::string_view text) { return model->normalize(text); }},
        source.parent_path());
    pad_id = added.need(settings.tokens.named("pad_token"));
    eos_id = added.need(settings.tokens.named("eos_token"));
  }
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::load(const spec::TokenizerSpec& spec) {
  auto impl = std::make_shared<Impl>();
  impl->load(spec);
  return Tokenizer(std::move(impl));
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view raw_text) const {
  std::vector<std::int64_t> ids;
  impl_->added.split(
      valid_utf8(raw_text), [&](std::string_view some) { impl_->model->encode(some, ids); },
      [&](std::int64_t id) { ids.push_back(id); });
  ids.push_back(impl_->eos_id);
  return ids;
}

Tokenized Tokenizer::tokenize(const std::vector<std::string>& prompts,
                              std::int64_t max_length) const {
  const RowRule rule{.end = {impl_->eos_id},
                     .pad = impl_->pad_id,
                     .least = 1,
                     .encode = [this](std::string_view text) { return encode(text); },
                     .spell = [this](const auto& ids) { return decode(ids); }};
  return make_rows(rule, prompts, max_length);
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& ids) const {
  std::string marked;
  for (std::int64_t id : ids)
    marked += impl_->piece(id);
  std::string text;
  for (std::size_t at = 0; at < marked.size();) {
    const bool space = std::string_view(marked).substr(at).starts_with(kSpaceMark);
    if (space && !text.empty()) text += ' ';
    if (!space) text += marked[at];
    at += space ? kSpaceMark.size() : 1;
  }
  return text;
}

std::int64_t Tokenizer::vocab_size() const {
  return impl_->added.end();
}

std::int64_t Tokenizer::own_vocab_size() const {
  return impl_->model->size();
}

const AddedVocabulary& Tokenizer::added() const {
  return impl_->added;
}

std::int64_t Tokenizer::pad_id() const {
  return impl_->pad_id;
}

std::int64_t Tokenizer::eos_id() const {
  return impl_->eos_id;
}

const std::filesystem::path& Tokenizer::source() const {
  return impl_->source;
}

}  // namespace troupe::models
