#include "actors/stage/rows.h"

namespace troupe::actors {

RowRuns rows_of(const std::vector<wire::RowShares>& micro_steps, int micro_step,
                int sequence_rank) {
  RowRuns runs;
  for (int i = 0; i < static_cast<int>(micro_steps.size()); ++i) {
    if (micro_step >= 0 && i != micro_step) continue;
    const auto& own = micro_steps[i].of_rank.at(sequence_rank);
    if (own.begin == own.end) continue;
    if (!runs.empty() && runs.back().end == own.begin) {
      runs.back().end = own.end;
    } else {
      runs.push_back({own.begin, own.end});
    }
  }
  return runs;
}

std::int64_t count_rows(const RowRuns& rows) {
  std::int64_t count = 0;
  for (const auto& run : rows)
    count += run.end - run.begin;
  return count;
}

models::TokenRuns tokens_of(const RowRuns& rows, std::int64_t columns, std::int64_t text_tokens,
                            models::TokenRun text) {
  models::TokenRuns tokens;
  if (text.size() > 0) tokens.push_back(text);
  for (const auto& run : rows)
    tokens.push_back({text_tokens + run.begin * columns, text_tokens + run.end * columns});
  return tokens;
}

}  // namespace troupe::actors
