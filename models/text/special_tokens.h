#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/spec/config.h"

namespace troupe::models {

/// What the files tokenizer_config.json and special_tokens_map.json have in common between
/// tokenizers. All throw ConfigReader's error, naming file, key and value.

/// The token under `key`, given as its text or as an object with `content`; `fallback` where it is
/// missing or null. An object may not ask for lstrip, rstrip or single_word.
std::string token_text(const spec::ConfigReader& config, const char* key,
                       const std::string& fallback);

/// How many tokens one file may add to a vocabulary: each is looked for at each place of a prompt.
inline constexpr std::size_t kMaxAddedTokens = 10'000;

/// How many values a vocabulary's JSON may have: of the largest, scores and merges included.
inline constexpr std::size_t kMaxVocabularyValues = 4'000'000;

/// The tokens under `key`: a list of them, or an object with names for them. None where it is
/// missing or null.
std::vector<std::string> token_texts(const spec::ConfigReader& config, const char* key);

/// Refuses a list or an object of more than `kMaxAddedTokens`.
void require_few(const spec::ConfigReader& config, const char* key, const nlohmann::json& tokens);

/// The key may be missing, null, or have this value.
void only_or_null(const spec::ConfigReader& config, const char* key, const nlohmann::json& value);

/// Accepts what says where files came from, how ids become text, or how calls that are made
/// otherwise than ours would pad and cut; rows are cut and padded on the right, and special tokens
/// in a prompt are found: another value is refused.
void accept_common_settings(const spec::ConfigReader& config);

}  // namespace troupe::models
