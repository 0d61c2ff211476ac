#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/text/tokenized.h"

namespace troupe::models {

/// BERT's tokenizer: clean text, Chinese letters apart, lower case without accents where the folder
/// says so, words and punctuation, then the longest pieces of the vocabulary. Equal to
/// BertTokenizer of transformers 5.
class BertTokenizer {
 public:
  /// From a folder, as read_bert_vocabulary reads it. Throws std::runtime_error naming file and
  /// cause.
  static BertTokenizer load(const std::filesystem::path& folder);

  /// Ids of `text`, begin and end token included; special tokens spelt out in it are these tokens.
  /// Bytes that are not UTF-8 read as U+FFFD, which is dropped.
  std::vector<std::int64_t> encode(std::string_view text) const;

  /// Ids cut or padded to `max_length` (at least 2): what is too long keeps its first
  /// max_length - 1 ids and the end token.
  Tokenized tokenize(const std::vector<std::string>& prompts, std::int64_t max_length) const;

  std::int64_t vocab_size() const { return static_cast<std::int64_t>(pieces_.size()); }

 private:
  std::vector<std::string> words(std::string_view text) const;
  void add_pieces(const std::string& word, std::vector<std::int64_t>& ids) const;
  std::int64_t need(const std::string& piece, const std::filesystem::path& file) const;
  std::string text_of(const std::vector<std::int64_t>& ids) const;

  std::unordered_map<std::string, std::int64_t> ids_;
  std::vector<std::string> pieces_;
  /// Longest first.
  std::vector<std::string> special_;
  bool lower_case_ = true, strip_accents_ = true, chinese_apart_ = true;
  std::int64_t begin_ = 0, end_ = 0, pad_ = 0, unknown_ = 0;
};

}  // namespace troupe::models
