#include "models/dit/stale_kv_attention.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/attention.h"

namespace troupe::models {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument("[stale_kv_attention] " + text);
}

}  // namespace

StaleKvAttention::StaleKvAttention(const Shape& shape, at::ScalarType dtype, at::Device device)
    : shape_(shape) {
  const int64_t blocks = shape.blocks.end - shape.blocks.begin;
  if (blocks < 0 || shape.batch < 1 || shape.tokens < 1 || shape.heads < 1 || shape.head_dim < 1) {
    std::ostringstream text;
    text << "impossible sizes: blocks " << blocks << ", batch " << shape.batch << ", tokens "
         << shape.tokens << ", heads " << shape.heads << " x " << shape.head_dim;
    refuse(text.str());
  }
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  keys_ = at::empty({blocks, shape.batch, shape.tokens, shape.heads, shape.head_dim}, options);
  values_ = at::empty_like(keys_);
  written_.assign(static_cast<size_t>(blocks), 0);
}

void StaleKvAttention::begin(int64_t begin, int64_t end) {
  const int64_t reached =
      written_.empty() ? begin : *std::min_element(written_.begin(), written_.end());
  if (begin < 0 || end <= begin || end > shape_.tokens || begin > reached) {
    std::ostringstream text;
    text << "tokens " << begin << " to " << end << " of " << shape_.tokens << ", where " << reached
         << " have been written";
    refuse(text.str());
  }
  begin_ = begin;
  end_ = end;
}

size_t StaleKvAttention::slot(int block) const {
  if (block < shape_.blocks.begin || block >= shape_.blocks.end) {
    refuse("block " + std::to_string(block) + " is not one of " +
           std::to_string(shape_.blocks.begin) + " to " + std::to_string(shape_.blocks.end));
  }
  return static_cast<size_t>(block - shape_.blocks.begin);
}

at::Tensor StaleKvAttention::attend(int block, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v) {
  const size_t own = slot(block);
  const std::vector<int64_t> expected = {shape_.batch, end_ - begin_, shape_.heads,
                                         shape_.head_dim};
  if (q.sizes() != expected || k.sizes() != expected || v.sizes() != expected) {
    std::ostringstream text;
    text << "block " << block << ": q " << q.sizes() << ", k " << k.sizes() << ", v " << v.sizes()
         << ", expected " << at::IntArrayRef(expected);
    refuse(text.str());
  }
  at::Tensor keys = keys_.select(0, static_cast<int64_t>(own));
  at::Tensor values = values_.select(0, static_cast<int64_t>(own));
  keys.slice(1, begin_, end_).copy_(k);
  values.slice(1, begin_, end_).copy_(v);
  written_[own] = std::max(written_[own], end_);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim));
  return kernels::attention(q, keys.slice(1, 0, written_[own]), values.slice(1, 0, written_[own]),
                            scale);
}

void StaleKvAttention::reset() {
  std::fill(written_.begin(), written_.end(), 0);
  begin_ = end_ = 0;
}

int64_t StaleKvAttention::written(int block) const {
  return written_[slot(block)];
}

int64_t StaleKvAttention::bytes() const {
  return static_cast<int64_t>(keys_.nbytes() + values_.nbytes());
}

}  // namespace troupe::models
