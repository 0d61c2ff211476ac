#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "actors/parallel/head_exchange.h"
#include "actors/parallel/ring_attention.h"
#include "models/dit/ports.h"

namespace troupe::actors {

/// Attention over all tokens of the picture from ranks that hold some of them: heads are exchanged
/// among ulysses ranks, keys and values among ring ranks, and what other calls computed is kept.
/// One rank with nothing kept is plain attention. Source: USP (Fang & Zhao), PipeFusion (Fang et
/// al.).
class SequenceAttention final : public models::AttentionPort {
 public:
  struct Place {
    int ring_rank = 0;
    int ring_degree = 1;
    int ulysses_rank = 0;
    int ulysses_degree = 1;
  };
  /// `exchange` is empty for one ulysses rank.
  SequenceAttention(Place place, std::optional<HeadExchange> exchange, RingAttention ring)
      : place_(place), exchange_(std::move(exchange)), ring_(std::move(ring)) {}

  /// The next calls are for these tokens, by sequence rank = ring rank · ulysses degree + ulysses
  /// rank. A call may be for the batch items from `first_item` on only, one that is not synchronous
  /// for items of the same history. The first `text_tokens` tokens of all are the text's; a run has
  /// tokens of one kind.
  void begin(const std::vector<models::TokenRuns>& tokens, int step, bool synchronous,
             bool last_step, std::int64_t first_item = 0, std::int64_t text_tokens = 0);
  /// Forgets all values of earlier calls.
  void forget() { ring_.forget(); }
  at::Tensor attend(int slot, const at::Tensor& qkv,
                    models::Attend to = models::Attend::everything) override;

  models::KvStore* store() const { return ring_.store(); }
  std::int64_t bytes() const { return ring_.bytes(); }

 private:
  Place place_;
  std::optional<HeadExchange> exchange_;
  RingAttention ring_;
  struct Call {
    RingAttention::Call ring;
    std::vector<std::int64_t> peer_tokens;  // of each ulysses rank
  };
  Call call_of(const std::vector<models::TokenRuns>& tokens, RingAttention::Call ring) const;

  Call all_;
  Call picture_;  // without the text's tokens
};

}  // namespace troupe::actors
