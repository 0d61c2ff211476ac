#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
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

/// The tokens that are found in a text as a whole, with their ids: those that the model's own
/// vocabulary has keep its ids, the others follow it in the order in which they are added. Equal to
/// AddedVocabulary of the `tokenizers` library. Immutable, usable from several threads.
class AddedVocabulary {
 public:
  /// The tokenizer's own model, as far as added tokens need it.
  struct Model {
    std::int64_t size = 0;                                        // of its vocabulary
    std::function<std::int64_t(const std::string&)> id;           // -1 where it has none
    std::function<std::string(std::string_view text)> normalize;  // what it does to a text first
  };

  AddedVocabulary() = default;
  /// `folder` is named in errors. Throws std::runtime_error for a token whose id in the folder's
  /// list is not the one that it comes to.
  AddedVocabulary(const std::vector<AddedToken>& tokens, Model model,
                  const std::filesystem::path& folder);

  /// Calls `on_text` for each normalized text between tokens and `on_token` for each token, from
  /// left to right; of several that begin at a place the longest is found.
  void split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(std::int64_t)>& on_token) const;

  /// The id of a token; -1 where there is none, neither here nor in the model's vocabulary.
  std::int64_t id(const std::string& content) const;
  /// The id of a token; throws std::runtime_error where there is none, and for an implied token
  /// that the model's vocabulary lacks.
  std::int64_t need(const std::string& content) const;
  /// The token of an id beyond the model's vocabulary; empty where there is none.
  std::string content(std::int64_t id) const;
  /// One more than the largest id, at least the size of the model's vocabulary.
  std::int64_t end() const { return end_; }
  /// Returns the first token, implied ones left out, whose id is not below `rows`; empty if there
  /// is none.
  std::string beyond(std::int64_t rows) const;

  /// The text with each token T that it has followed by T_1, T_2 and so on, as far as there are
  /// such: the vectors of one learned word, as diffusers' `maybe_convert_prompt` writes them out.
  /// Throws std::runtime_error where that makes more than 64 KiB.
  std::string with_all_vectors(std::string text) const;
  /// True if there are learned words of several vectors.
  bool has_learned_words() const { return !vectors_.empty(); }

 private:
  struct Placed {
    AddedToken token;
    std::int64_t id = 0;
    std::string looked_for;
  };
  static void cut_out(std::string_view all, const std::vector<Placed>& tokens,
                      const std::function<void(std::string_view)>& on_text,
                      const std::function<void(std::int64_t)>& on_token);

  Model model_;
  std::filesystem::path folder_;
  std::int64_t end_ = 0;
  std::vector<Placed> as_given_, normalized_;  // longest first
  std::map<std::string, std::int64_t> ids_;
  std::set<std::string> lacking_;  // implied ones that the model's vocabulary lacks
  std::map<std::int64_t, std::string> contents_;
  std::map<std::int64_t, std::pair<std::string, std::string>> vectors_;  // a token, all of its
};

}  // namespace troupe::models
