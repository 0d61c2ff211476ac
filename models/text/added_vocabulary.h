#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/special_tokens.h"

namespace troupe::models {

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
