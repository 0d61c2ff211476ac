#include "models/text/tokenized.h"

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
      const std::int64_t end = rule.eos ? 1 : 0;
      cut = rule.spell({ids.begin() + max_length - end, ids.end() - end});
      ids.resize(length);
      if (rule.eos) ids.back() = *rule.eos;
    }
    result.lengths.push_back(static_cast<std::int64_t>(ids.size()));
    ids.resize(length, rule.pad);
    result.ids.push_back(std::move(ids));
    result.cut.push_back(std::move(cut));
  }
  return result;
}

}  // namespace troupe::models
