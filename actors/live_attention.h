#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

#include "models/dit/attention_port.h"

namespace troupe::actors {

/// Another port with a sign of life before every block: a long micro-step counts as progress, and
/// can be left when its epoch ends, by what `tick` throws.
class LiveAttention : public models::AttentionPort {
 public:
  LiveAttention(models::AttentionPort& inner, std::function<void()> tick)
      : inner_(inner), tick_(std::move(tick)) {}

  at::Tensor attend(int slot, const at::Tensor& qkv, models::Attend to) override {
    tick_();
    return inner_.attend(slot, qkv, to);
  }

 private:
  models::AttentionPort& inner_;
  std::function<void()> tick_;
};

}  // namespace troupe::actors
