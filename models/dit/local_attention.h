#pragma once

#include "models/dit/attention_port.h"

namespace troupe::models {

/// The call holds all tokens: nothing is kept, nothing is fetched.
class LocalAttention : public AttentionPort {
 public:
  at::Tensor attend(int slot, const at::Tensor& qkv, Attend to = Attend::everything) override;
};

}  // namespace troupe::models
