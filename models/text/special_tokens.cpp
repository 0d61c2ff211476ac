#include "models/text/special_tokens.h"

#include <optional>

namespace troupe::models {
namespace {

/// Nothing where `value` is no token.
std::optional<std::string> text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return std::nullopt;
  const auto content = value.find("content");
  if (content == value.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

std::string read_token(const spec::ConfigReader& config, const char* key,
                       const nlohmann::json& value) {
  const auto text = text_of(value);
  if (!text || text->empty()) config.refuse(key, "must be a token");
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    if (value.is_object() && value.contains(flag) && value[flag] != false)
      config.refuse(key, std::string("asks for ") + flag + ", which is not supported");
  }
  return *text;
}

}  // namespace

std::string token_text(const spec::ConfigReader& config, const char* key,
                       const std::string& fallback) {
  if (config.has_value(key)) return read_token(config, key, config.raw(key));
  config.harmless({key});
  return fallback;
}

void require_few(const spec::ConfigReader& config, const char* key, const nlohmann::json& tokens) {
  if (tokens.size() > kMaxAddedTokens)
    config.refuse(key, "has " + std::to_string(tokens.size()) + " tokens, at most " +
                           std::to_string(kMaxAddedTokens) + " are read");
}

std::vector<std::string> token_texts(const spec::ConfigReader& config, const char* key) {
  std::vector<std::string> texts;
  config.harmless({key});
  if (!config.has_value(key)) return texts;
  const auto& value = config.raw(key);
  if (!value.is_array() && !value.is_object()) config.refuse(key, "must be a list of tokens");
  require_few(config, key, value);
  for (const auto& item : value)
    texts.push_back(read_token(config, key, item));
  return texts;
}

void only_or_null(const spec::ConfigReader& config, const char* key, const nlohmann::json& value) {
  config.harmless({key});
  if (config.has_value(key)) config.only(key, value);
}

void accept_common_settings(const spec::ConfigReader& config) {
  config.only("padding_side", "right");
  config.only("truncation_side", "right");
  config.only("split_special_tokens", false);
  config.harmless({"backend", "clean_up_tokenization_spaces", "from_slow", "is_local",
                   "local_files_only", "max_length", "model_max_length", "name_or_path",
                   "pad_to_multiple_of", "pad_token_type_id", "processor_class",
                   "spaces_between_special_tokens", "special_tokens_map_file", "stride",
                   "tokenizer_file", "truncation_strategy", "use_fast"});
}

}  // namespace troupe::models
