#include "models/spec/expected_tensors.h"

#include <set>
#include <stdexcept>

namespace troupe::spec {
namespace {

bool is_floating(Dtype dtype) {
  return dtype == Dtype::float32 || dtype == Dtype::bfloat16 || dtype == Dtype::float16 ||
         dtype == Dtype::float64;
}

}  // namespace

const TensorEntry& entry_of(const WeightIndex& index, const ExpectedTensor& expected) {
  if (const auto* entry = index.find(expected.name)) return *entry;
  for (const std::string& name : expected.other_names) {
    if (const auto* entry = index.find(name)) return *entry;
  }
  throw std::runtime_error("[check_weights] " + index.label().string() + ": tensor \"" +
                           expected.name + "\" " + shape_text(expected.shape) + " is missing");
}

void check_tensor(const WeightIndex& index, const ExpectedTensor& expected) {
  const TensorEntry& entry = entry_of(index, expected);
  const std::string where =
      "[check_weights] " + entry.file.string() + ": tensor \"" + entry.name + "\" ";
  if (entry.shape != expected.shape) {
    throw std::runtime_error(where + "has shape " + shape_text(entry.shape) +
                             ", the config calls for " + shape_text(expected.shape));
  }
  if (!is_floating(entry.dtype)) {
    throw std::runtime_error(where + "has dtype " + std::string(dtype_name(entry.dtype)) +
                             ", a floating one is needed");
  }
}

void check_tensors(const WeightIndex& index, const std::vector<ExpectedTensor>& expected,
                   const std::function<bool(std::string_view)>& ignorable) {
  std::set<std::string_view> known;
  for (const ExpectedTensor& tensor : expected) {
    check_tensor(index, tensor);
    known.insert(tensor.name);
    known.insert(tensor.other_names.begin(), tensor.other_names.end());
  }
  for (const TensorEntry& entry : index.tensors()) {
    if (!known.contains(entry.name) && !ignorable(entry.name)) {
      throw std::runtime_error("[check_weights] " + entry.file.string() + ": tensor \"" +
                               entry.name + "\" " + shape_text(entry.shape) +
                               " is not called for by the config");
    }
  }
}

}  // namespace troupe::spec
