#include "models/text/unigram.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "models/text/unicode.h"

namespace troupe::models {
namespace {

/// Difference between the scores of the worst piece and of an unknown character.
constexpr double kUnknownPenalty = 10.0;
constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

struct Ending {
  std::size_t begin = kNowhere;
  double score = 0;
  bool unknown = false;

  void offer(std::size_t from, double candidate, bool is_unknown) {
    if (begin == kNowhere || candidate > score) *this = {from, candidate, is_unknown};
  }
};

}  // namespace

Unigram::Unigram(std::vector<Piece> pieces, std::int64_t unk_id)
    : pieces_(std::move(pieces)), unk_id_(unk_id) {
  if (unk_id < 0 || unk_id >= size()) {
    throw std::invalid_argument("[unigram] unk_id = " + std::to_string(unk_id) + " is not one of " +
                                std::to_string(size()) + " pieces");
  }
  double least = std::numeric_limits<double>::infinity();
  ids_.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    ids_[pieces_[i].text] = static_cast<std::int64_t>(i);
    least = std::min(least, pieces_[i].score);
    longest_piece_ = std::max(longest_piece_, pieces_[i].text.size());
  }
  unk_score_ = least - kUnknownPenalty;
}

std::int64_t Unigram::id(std::string_view piece) const {
  const auto it = ids_.find(piece);
  return it == ids_.end() ? -1 : it->second;
}

void Unigram::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  std::vector<Ending> endings(text.size() + 1);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t character = code_point_at(text, begin).bytes;
    const double score = endings[begin].score;
    const std::size_t longest = std::min(longest_piece_, text.size() - begin);
    bool character_known = false;
    for (std::size_t length = character; length <= longest;) {
      const std::int64_t found = id(text.substr(begin, length));
      if (found >= 0) {
        endings[begin + length].offer(begin, score + pieces_[found].score, found == unk_id_);
        character_known = character_known || length == character;
      }
      if (begin + length == text.size()) break;
      length += code_point_at(text, begin + length).bytes;
    }
    if (!character_known) endings[begin + character].offer(begin, score + unk_score_, true);
    begin += character;
  }

  std::vector<std::int64_t> reversed;
  for (std::size_t end = text.size(); end > 0;) {
    std::size_t begin = endings[end].begin;
    if (endings[end].unknown) {
      while (begin > 0 && endings[begin].unknown)
        begin = endings[begin].begin;
    }
    const std::int64_t found = id(text.substr(begin, end - begin));
    reversed.push_back(found >= 0 ? found : unk_id_);
    end = begin;
  }
  ids.insert(ids.end(), reversed.rbegin(), reversed.rend());
}

}  // namespace troupe::models
