#include "models/dit/weight_loader.h"

#include <vector>

#include <ATen/ATen.h>

namespace troupe::models {

kernels::Linear WeightLoader::linear(const std::string& name, int64_t in, int64_t out,
                                     bool bias) const {
  const at::Tensor weight = get(name + ".weight", {out, in});
  kernels::Linear made(weight, bias ? copy(name + ".bias", {out}) : at::Tensor());
  if (!made.keeps(weight)) release(name + ".weight");
  return made;
}

kernels::Linear WeightLoader::joined(const std::vector<std::string>& names, int64_t in,
                                     int64_t out_each, bool bias, Slice rows) const {
  std::vector<at::Tensor> weights, biases;
  for (const std::string& name : names) {
    weights.push_back(get(name + ".weight", {out_each, in}).slice(0, rows.begin, rows.end));
    if (bias) biases.push_back(get(name + ".bias", {out_each}).slice(0, rows.begin, rows.end));
  }
  kernels::Linear made(at::cat(weights), bias ? at::cat(biases) : at::Tensor());
  weights.clear();
  for (const std::string& name : names)
    release(name + ".weight");
  return made;
}

kernels::Linear WeightLoader::narrow(const std::string& name, int64_t in, int64_t out,
                                     Slice columns, bool bias) const {
  const at::Tensor weight = get(name + ".weight", {out, in});
  const bool whole = columns.begin == 0 && columns.end == in;
  kernels::Linear made(whole ? weight : weight.slice(1, columns.begin, columns.end).contiguous(),
                       bias ? copy(name + ".bias", {out}) : at::Tensor());
  if (!made.keeps(weight)) release(name + ".weight");
  return made;
}

at::Tensor WeightLoader::copy(const std::string& name, at::IntArrayRef shape) const {
  return get(name, shape).clone();
}

}  // namespace troupe::models
