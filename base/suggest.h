#pragma once
#include <string>
#include <vector>

namespace troupe {

/// Returns how many characters must be added, taken away, changed or swapped to make `a` of `b`.
int edit_distance(const std::string& a, const std::string& b);

/// Returns the one of `known` that `word` was probably meant to be, in whatever case, or "": one
/// that it begins, else the nearest with at most one slip in four letters. Dashes in front do not
/// count.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// "; did you mean WORD?", or "".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

/// Returns what is wrong with a word that is none of these: `"x" is not a, b or c; did you mean
/// b?`. `synonyms`: words that would do as well, and are not listed.
std::string not_one_of(const std::string& word, const std::vector<std::string>& known,
                       const std::vector<std::string>& synonyms = {});

}  // namespace troupe
