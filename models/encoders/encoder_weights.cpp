#include "models/encoders/encoder_weights.h"

#include <stdexcept>
#include <utility>

namespace troupe::models {

EncoderWeights::EncoderWeights(WeightStore store, at::ScalarType dtype, at::Device device)
    : store_(std::move(store)), dtype_(dtype), device_(device) {}

std::uint64_t EncoderWeights::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : held_)
    bytes += tensor.nbytes();
  return bytes;
}

const at::Tensor& EncoderWeights::get(const std::string& name) {
  if (const auto found = held_.find(name); found != held_.end()) return found->second;
  auto tensor = store_.get(name, index().at(name).shape, dtype_, device_);
  if (!store_.maps(tensor)) store_.release(name);
  return held_.emplace(name, std::move(tensor)).first->second;
}

at::Tensor EncoderWeights::rows(const std::string& table, const at::Tensor& ids, const char* who) {
  const auto entries = index().at(table).shape.at(0);
  if (ids.numel() > 0) {
    const auto least = ids.min().item<std::int64_t>();
    const auto most = ids.max().item<std::int64_t>();
    if (least < 0 || most >= entries) {
      throw std::invalid_argument("[" + std::string(who) + "] token id " +
                                  std::to_string(least < 0 ? least : most) +
                                  " is not below vocab_size = " + std::to_string(entries));
    }
  }
  const at::Tensor rows = store_.rows(table, ids);
  require_finite(rows, index().label().string() + ": rows of tensor \"" + table + "\" ");
  store_.release(table);
  return rows.to(dtype_).to(device_);
}

void EncoderWeights::end_block() {
  if (stays_) return;
  for (const auto& [name, tensor] : held_)
    store_.release(name);
  held_.clear();
}

}  // namespace troupe::models
