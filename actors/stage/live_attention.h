#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

#include "models/dit/ports.h"

namespace troupe::actors {

/// Another port with a call before every attention. By it a long micro-step counts as progress and
/// can be left when its epoch ends, and whoever watches the layers is told what they are given.
class LiveAttention : public models::AttentionPort {
 public:
  using Before = std::function<void(int slot, const at::Tensor& qkv)>;
  LiveAttention(models::AttentionPort& inner, Before before)
      : inner_(inner), before_(std::move(before)) {}

  at::Tensor attend(int slot, const at::Tensor& qkv, models::Attend to) override {
    before_(slot, qkv);
    return inner_.attend(slot, qkv, to);
  }

 private:
  models::AttentionPort& inner_;
  Before before_;
};

}  // namespace troupe::actors
