#include "models/text/tokenized.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace troupe::models {

Tokenized make_rows(const RowRule& rule, const std::vector<std::string>& prompts,
                    std::int64_t max_length) {
  if (max_length < rule.least) {
    throw std::invalid_argument("[tokenize] max_length = " + std::to_string(max_length) +
                                ", must be at least " + std::to_string(rule.least));
  }
  const auto length = static_cast<std::size_t>(max_length);
  Tokenized result;
  for (const std::string& prompt : prompts) {
    std::vector<std::int64_t> ids = rule.encode(prompt);
    std::string cut;
    if (ids.size() > length) {
      const auto end = static_cast<std::ptrdiff_t>(std::min(rule.end.size(), length));
      cut = rule.spell({ids.begin() + max_length - end, ids.end() - end});
      ids.resize(length);
      std::copy(rule.end.end() - end, rule.end.end(), ids.end() - end);
    }
    result.lengths.push_back(static_cast<std::int64_t>(ids.size()));
    ids.resize(length, rule.pad);
    result.ids.push_back(std::move(ids));
    result.cut.push_back(std::move(cut));
  }
  return result;
}

}  // namespace troupe::models
