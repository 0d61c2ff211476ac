#include "actors/parallel/sequence_attention.h"

#include <ATen/ATen.h>

namespace troupe::actors {

SequenceAttention::Call SequenceAttention::call_of(const std::vector<models::TokenRuns>& tokens,
                                                   RingAttention::Call ring) const {
  Call call{std::move(ring), {}};
  for (int rank = 0; rank < place_.ring_degree; ++rank) {
    models::TokenRuns together;
    for (int ulysses = 0; ulysses < place_.ulysses_degree; ++ulysses) {
      const auto& own = tokens.at(rank * place_.ulysses_degree + ulysses);
      together.insert(together.end(), own.begin(), own.end());
      if (rank == place_.ring_rank) call.peer_tokens.push_back(models::count_of(own));
    }
    call.ring.tokens.push_back(std::move(together));
  }
  return call;
}

void SequenceAttention::begin(const std::vector<models::TokenRuns>& tokens, int step,
                              bool synchronous, bool last_step, std::int64_t first_item,
                              std::int64_t text_tokens) {
  const RingAttention::Call ring{step, {}, synchronous, last_step, first_item};
  all_ = call_of(tokens, ring);
  auto of_picture = tokens;
  for (auto& runs : of_picture)
    std::erase_if(runs, [&](const models::TokenRun& run) { return run.begin < text_tokens; });
  picture_ = call_of(of_picture, ring);
}

at::Tensor SequenceAttention::attend(int slot, const at::Tensor& qkv, models::Attend to) {
  const Call& call = to == models::Attend::everything ? all_ : picture_;
  ring_.begin(call.ring);
  if (!exchange_) return ring_.attend(slot, qkv.transpose(0, 1));
  const auto own_heads = exchange_->scatter_heads(qkv, call.peer_tokens);
  return exchange_->gather_heads(ring_.attend(slot, own_heads), call.peer_tokens);
}

}  // namespace troupe::actors
