#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/spec/config.h"

namespace troupe::models {

/// A token that is found in a text as a whole, before the text is split.
struct AddedToken {
  std::string content;
  /// True if the token takes the white space before it (lstrip), or after it (rstrip), along.
  bool lstrip = false;
  bool rstrip = false;
  /// True if the token is not found inside a word.
  bool single_word = false;
  /// True if the token is looked for in the prepared text (such as lower case) instead of the given
  /// text.
  bool normalized = false;
  /// Id that the folder's list gives the token.
  std::optional<std::int64_t> listed_id = {};
  /// True if the token belongs to every tokenizer of its class, and the folder does not name it.
  bool implied = false;

  bool operator==(const AddedToken&) const = default;
};

/// Most tokens that one file may add to a vocabulary: each is looked for at each place of a prompt.
inline constexpr std::size_t kMaxAddedTokens = 10'000;

/// Most values that a vocabulary's JSON may have: enough for the largest, scores and merges
/// included.
inline constexpr std::size_t kMaxVocabularyValues = 4'000'000;

/// Special and added tokens that the files of a tokenizer's folder name, gathered as transformers 5
/// does. All methods throw std::runtime_error naming file, key and value.
class FolderTokens {
 public:
  /// The keys under which a folder may name a token, in the order in which they are added.
  static constexpr std::array<const char*, 7> kKeys = {
      "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

  /// `named`: the tokens that a tokenizer of this class has where the folder names none, by key.
  explicit FolderTokens(std::map<std::string, std::string> named);

  /// Reads the tokens of tokenizer_config.json. If the file has a list (`added_tokens_decoder`),
  /// the list stands for all added tokens.
  void read_config(const spec::ConfigReader& config);
  /// Reads the tokens of special_tokens_map.json, of added_tokens.json and of `json_list`, the
  /// member "added_tokens" of `json_file` (tokenizer.json), unless read_config found a list.
  void read_folder(const std::filesystem::path& folder, const std::filesystem::path& json_file,
                   const nlohmann::json& json_list);
  /// Adds special tokens, unless the folder has others beside those that it names.
  void add_implied(const std::vector<std::string>& contents);

  /// The token under one of the keys; empty where neither the folder nor the class has one.
  std::string named(const std::string& key) const;
  /// All tokens, in the order in which they are added to the vocabulary.
  std::vector<AddedToken> in_order() const;

 private:
  void read_named(const spec::ConfigReader& from, bool special);
  bool is_special(const std::string& content) const;

  std::map<std::string, AddedToken> named_;
  std::vector<AddedToken> extra_;
  std::map<std::int64_t, AddedToken> listed_;
  bool has_list_ = false;
};

/// The key may be missing, null, or have this value.
void only_or_null(const spec::ConfigReader& config, const char* key, const nlohmann::json& value);

/// Accepts what says where files came from, how ids become text, or how calls that are made
/// otherwise than ours would pad and cut; rows are cut and padded on the right, and special tokens
/// in a prompt are found: another value is refused.
void accept_common_settings(const spec::ConfigReader& config);

}  // namespace troupe::models
