#pragma once
#include <cstdint>
#include <vector>

#include "models/dit/diffusion_transformer.h"
#include "models/dit/kv_store.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

using RowRuns = std::vector<models::TokenRows>;

/// Ranks of a sequence group, and this actor's place among them.
inline int sequence_degree(const wire::BeginJob& begin) {
  return begin.ring.degree * begin.ulysses.degree;
}
inline int sequence_rank(const wire::BeginJob& begin) {
  return begin.ring.rank * begin.ulysses.degree + begin.ulysses.rank;
}

/// Token rows that a sequence rank computes in a micro-step, or with micro_step -1 in a step of the
/// whole picture: all its runs, neighbours joined, empty ones left out.
RowRuns rows_of(const std::vector<wire::RowShares>& micro_steps, int micro_step, int sequence_rank);

std::int64_t count_rows(const RowRuns& rows);

/// Returns the tokens of `rows`; before them come those of `text`, among the `text_tokens` that
/// stand before the picture's.
models::TokenRuns tokens_of(const RowRuns& rows, std::int64_t columns, std::int64_t text_tokens = 0,
                            models::TokenRun text = {});

}  // namespace troupe::actors
