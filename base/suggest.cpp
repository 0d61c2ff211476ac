#include "base/suggest.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace troupe {
namespace {

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::string without_dashes(const std::string& word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

/// Returns the word without what separates its parts.
std::string joined(std::string word) {
  std::erase_if(word, [](char c) { return c == '-' || c == '_'; });
  return word;
}

}  // namespace

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    cost[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j)
    cost[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::string nearest(const std::string& typed, const std::vector<std::string>& known) {
  if (typed.size() > 64) return "";
  const std::string word = lower(typed);
  const std::string letters = without_dashes(word);
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string& one : known) {
    const std::string candidate = lower(one);
    const std::string meant = without_dashes(candidate);
    const bool prefix = word.size() >= 4 && candidate.starts_with(word);
    const bool same = prefix || (!letters.empty() && joined(letters) == joined(meant));
    const int distance = same ? 0 : edit_distance(letters, meant);
    // One slip in four letters: of a short word nearly every other is near.
    if (distance > static_cast<int>(std::max(letters.size(), meant.size()) / 4)) continue;
    const bool shorter = distance == best_distance && prefix && candidate.size() < best.size();
    if (distance < best_distance || shorter) {
      best = one;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string guess = nearest(word, known);
  return guess.empty() ? "" : "; did you mean " + guess + "?";
}

std::string not_one_of(const std::string& word, const std::vector<std::string>& known,
                       const std::vector<std::string>& synonyms) {
  auto meant = known;
  meant.insert(meant.end(), synonyms.begin(), synonyms.end());
  return "\"" + word + "\" is not " + choices_text(known) + did_you_mean(word, meant);
}

}  // namespace troupe
