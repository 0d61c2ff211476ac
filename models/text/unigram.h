#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::models {

/// A unigram language model over pieces: the split of a text whose pieces' scores add up highest.
/// Ties and unknown characters go as in the `tokenizers` library, so that ids agree.
class Unigram {
 public:
  struct Piece {
    std::string text;
    double score = 0;
  };

  /// `unk_id` is an index of `pieces`. Throws std::invalid_argument if it is not.
  Unigram(std::vector<Piece> pieces, std::int64_t unk_id);
  Unigram(const Unigram&) = delete;
  Unigram& operator=(const Unigram&) = delete;

  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  const std::string& piece(std::int64_t id) const { return pieces_.at(id).text; }
  /// -1 if there is no such piece.
  std::int64_t id(std::string_view piece) const;

  /// Appends the ids of valid UTF-8 `text`; a run of unknown characters is one unknown.
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const;

 private:
  std::vector<Piece> pieces_;
  std::unordered_map<std::string_view, std::int64_t> ids_;
  std::int64_t unk_id_;
  double unk_score_;
  std::size_t longest_piece_ = 0;
};

}  // namespace troupe::models
