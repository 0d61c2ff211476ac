#include "models/text/tokenizer.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "models/spec/config.h"
#include "models/text/piece_model.h"
#include "models/text/special_tokens.h"
#include "models/text/tokenizer_json.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

constexpr std::int64_t kDefaultExtraIds = 100;
constexpr std::int64_t kMaxExtraIds = kMaxAddedTokens;

/// What tokenizer_config.json settles.
struct Settings {
  std::string pad = "<pad>";
  std::string eos = "</s>";
  std::string unk = "<unk>";
  /// Other special tokens with the keys that name them; they must be known as well.
  std::vector<std::pair<std::string, std::string>> others;
  std::int64_t extra_ids = kDefaultExtraIds;
  std::optional<std::vector<AddedToken>> added_tokens;
};

std::vector<AddedToken> read_added_tokens(const spec::ConfigReader& config) {
  std::vector<AddedToken> tokens;
  const char* key = "added_tokens_decoder";
  const auto& list = config.raw(key);
  if (!list.is_object()) config.refuse(key, "must be an object");
  require_few(config, key, list);
  for (const auto& entry : list.items()) {
    const std::string& id = entry.key();
    const auto& item = entry.value();
    const bool digits = !id.empty() && id.size() <= 9 &&
                        std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || !item.is_object() || !item.contains("content") || !item["content"].is_string() ||
        item["content"].get_ref<const std::string&>().empty()) {
      config.refuse(key, "has a bad entry \"" + id + "\"");
    }
    const auto flag = [&](const char* name) {
      if (!item.contains(name)) return false;
      if (!item[name].is_boolean()) config.refuse(key, "has a bad entry \"" + id + "\"");
      return item[name].template get<bool>();
    };
    if (flag("single_word")) config.refuse(key, "has a single_word token, which is not supported");
    tokens.push_back(
        {item["content"].get<std::string>(), std::stoll(id), flag("lstrip"), flag("rstrip")});
  }
  return tokens;
}

void read_named(const spec::ConfigReader& config, Settings& into) {
  into.pad = token_text(config, "pad_token", into.pad);
  into.eos = token_text(config, "eos_token", into.eos);
  into.unk = token_text(config, "unk_token", into.unk);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    for (const std::string& token : token_texts(config, key))
      into.others.emplace_back(key, token);
  }
  if (config.has_value("bos_token"))
    into.others.emplace_back("bos_token", token_text(config, "bos_token", ""));
  config.harmless({"bos_token"});
}

Settings read_settings(const spec::TokenizerSpec& spec) {
  Settings settings;
  if (spec.tokenizer_config) {
    const auto config = spec::ConfigReader::read(*spec.tokenizer_config);
    config.choice_or("tokenizer_class", "T5Tokenizer",
                     {"T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast"});
    read_named(config, settings);
    settings.extra_ids = config.integer_or("extra_ids", kDefaultExtraIds, 0, kMaxExtraIds);
    if (config.has_value("added_tokens_decoder")) settings.added_tokens = read_added_tokens(config);
    only_or_null(config, "add_prefix_space", true);
    only_or_null(config, "sp_model_kwargs", nlohmann::json::object());
    only_or_null(config, "add_bos_token", false);
    only_or_null(config, "add_eos_token", true);
    accept_common_settings(config);
    config.harmless({"unk_id", "legacy", "added_tokens_decoder"});
    config.finish();
  }
  const auto& pieces = spec.tokenizer_json ? spec.tokenizer_json : spec.spiece_model;
  const auto map = pieces ? pieces->parent_path() / "special_tokens_map.json" : "";
  if (!settings.added_tokens && std::filesystem::is_regular_file(map)) {
    const auto config = spec::ConfigReader::read(map);
    read_named(config, settings);
    config.finish();
  }
  return settings;
}

}  // namespace

struct Tokenizer::Impl {
  std::filesystem::path source;
  std::unique_ptr<PieceModel> model;
  /// Longest first, so that the first match at a position is the longest.
  std::vector<AddedToken> added_tokens;
  std::int64_t pad_id = -1;
  std::int64_t eos_id = -1;

  std::int64_t id(const std::string& token) const {
    for (const AddedToken& added : added_tokens) {
      if (added.content == token) return added.id;
    }
    const std::int64_t found = model->id(token);
    if (found < 0) {
      throw std::runtime_error("[load_tokenizer] " + source.string() + ": has no token \"" + token +
                               "\"");
    }
    return found;
  }

  std::string piece(std::int64_t id) const {
    for (const AddedToken& added : added_tokens) {
      if (added.id == id) return added.content;
    }
    if (id < 0 || id >= model->size()) {
      throw std::invalid_argument("[decode] id " + std::to_string(id) + " is not one of " +
                                  std::to_string(model->size()) + " pieces");
    }
    return model->piece(id);
  }

  const AddedToken* added_at(std::string_view text) const {
    for (const AddedToken& added : added_tokens) {
      if (text.starts_with(added.content)) return &added;
    }
    return nullptr;
  }

  void load(const spec::TokenizerSpec& spec) {
    const Settings settings = read_settings(spec);
    bool has_json_tokens = false;
    if (spec.tokenizer_json) {
      try {
        TokenizerJson json = read_tokenizer_json(*spec.tokenizer_json);
        model = std::move(json.model);
        added_tokens = std::move(json.added_tokens);
        source = *spec.tokenizer_json;
        has_json_tokens = !added_tokens.empty();
      } catch (const UnsupportedTokenizer&) {
        if (!spec.spiece_model) throw;
      }
    }
    if (!model) {
      if (!spec.spiece_model) {
        throw std::runtime_error("[load_tokenizer] neither spiece.model nor tokenizer.json");
      }
      source = *spec.spiece_model;
      model = load_sentencepiece(source);
    }
    if (!has_json_tokens) {
      if (settings.added_tokens) {
        added_tokens = *settings.added_tokens;
      } else {
        add_default_tokens(settings);
      }
    }
    for (const auto& [key, token] : settings.others)
      add_other_token(key, token);
    std::ranges::stable_sort(added_tokens, std::ranges::greater{},
                             [](const AddedToken& token) { return token.content.size(); });
    pad_id = id(settings.pad);
    eos_id = id(settings.eos);
  }

  void add_other_token(const std::string& key, const std::string& token) {
    const auto same = [&](const AddedToken& added) { return added.content == token; };
    if (std::ranges::any_of(added_tokens, same)) return;
    const std::int64_t found = model->id(token);
    if (found < 0) {
      throw std::runtime_error("[load_tokenizer] " + source.string() + ": has no token \"" + token +
                               "\", which the folder names as \"" + key + "\"");
    }
    added_tokens.push_back({token, found});
  }

  void add_default_tokens(const Settings& settings) {
    for (const std::string& token : {settings.pad, settings.eos, settings.unk}) {
      const std::int64_t found = model->id(token);
      if (found >= 0) added_tokens.push_back({token, found});
    }
    for (std::int64_t i = 0; i < settings.extra_ids; ++i) {
      const std::string token = "<extra_id_" + std::to_string(i) + ">";
      const std::int64_t found = model->id(token);
      const std::int64_t after = model->size() + settings.extra_ids - 1 - i;
      added_tokens.push_back({token, found >= 0 ? found : after});
    }
  }
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::load(const spec::TokenizerSpec& spec) {
  auto impl = std::make_shared<Impl>();
  impl->load(spec);
  return Tokenizer(std::move(impl));
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view raw_text) const {
  const std::string valid = valid_utf8(raw_text);
  const std::string_view text = valid;
  std::vector<std::int64_t> ids;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* added = impl_->added_at(text.substr(at));
    if (added == nullptr) {
      at += code_point_at(text, at).bytes;
      continue;
    }
    std::string_view before = text.substr(begin, at - begin);
    impl_->model->encode(before, ids);
    ids.push_back(added->id);
    at += added->content.size();
    while (added->rstrip && at < text.size() && is_white_space(code_point_at(text, at).value)) {
      at += code_point_at(text, at).bytes;
    }
    begin = at;
  }
  impl_->model->encode(text.substr(begin), ids);
  ids.push_back(impl_->eos_id);
  return ids;
}

Tokenized Tokenizer::tokenize(const std::vector<std::string>& prompts,
                              std::int64_t max_length) const {
  const RowRule rule{.eos = impl_->eos_id,
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
  std::int64_t size = impl_->model->size();
  for (const AddedToken& added : impl_->added_tokens)
    size = std::max(size, added.id + 1);
  return size;
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
