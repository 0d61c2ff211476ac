#include "actors/parallel/sequence_attention.h"

#include <ATen/ATen.h>

namespace troupe::actors {

void SequenceAttention::begin(const std::vector<models::TokenRuns>& tokens, int step,
                              bool synchronous, bool last_step, std::int64_t first_item) {
  RingAttention::Call call{step, {}, synchronous, last_step, first_item};
  peer_tokens_.clear();
  for (int ring = 0; ring < place_.ring_degree; ++ring) {
    models::TokenRuns together;
    for (int ulysses = 0; ulysses < place_.ulysses_degree; ++ulysses) {
      const auto& own = tokens.at(ring * place_.ulysses_degree + ulysses);
      together.insert(together.end(), own.begin(), own.end());
      if (ring == place_.ring_rank) peer_tokens_.push_back(models::count_of(own));
    }
    call.tokens.push_back(std::move(together));
  }
  ring_.begin(std::move(call));
}

at::Tensor SequenceAttention::attend(int block, const at::Tensor& qkv) {
  if (!exchange_) return ring_.attend(block, qkv.transpose(0, 1));
  const auto own_heads = exchange_->scatter_heads(qkv, peer_tokens_);
  return exchange_->gather_heads(ring_.attend(block, own_heads), peer_tokens_);
}

}  // namespace troupe::actors
