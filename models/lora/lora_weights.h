#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/safetensors.h"
#include "models/spec/lora_spec.h"

namespace troupe::models {

/// A LoRA file and how much of it is wanted.
struct LoraChoice {
  std::filesystem::path file;
  double scale = 1;
  bool of_second = false;  ///< true for the second of two transformers
};

/// LoRAs over a model, by read-only memory mapping. Copies are cheap and share the mappings.
class LoraWeights {
 public:
  LoraWeights() = default;
  /// Throws what spec::read_lora_spec and WeightStore throw.
  LoraWeights(const std::vector<LoraChoice>& loras, const spec::ModelSpec& model);

  bool empty() const { return files_.empty(); }
  /// Any of them adds to this tensor of the component ("transformer", "text_encoder", …).
  bool touches(const std::string& component, const std::string& tensor) const;
  /// `weight`, which is rows [row, row + weight.size(0)) and inputs [column, …) of the tensor, with
  /// Σ scale · alpha / rank · product of these added in float32, in the order of the files, each
  /// product as its kind says (spec::LoraKind); in the weight's type and on its device. Lengths
  /// (DoRA) are given to the stored weight with what their file adds, as PEFT does. A weight that
  /// none touches comes back as it is. Throws std::runtime_error naming file and tensor at a value
  /// that is not finite.
  at::Tensor add(const std::string& component, const std::string& tensor, const at::Tensor& weight,
                 std::int64_t row = 0, std::int64_t column = 0) const;
  /// The store's tensors come with what is added to them from now on.
  void adapt(WeightStore& store, const std::string& component) const;

 private:
  struct File {
    double scale = 1;
    WeightStore weights;
    std::vector<spec::LoraLayer> layers;
  };
  /// Part of a layer's product that is added to a tensor.
  struct Addition {
    std::size_t file = 0;
    std::size_t layer = 0;
    spec::LoraPart part;
  };
  double factor(const File& file, const spec::LoraLayer& layer) const;
  /// Rows [row, row + rows) of the tensor with the lengths of the file, less those that are stored;
  /// of these the columns [column, column + columns).
  at::Tensor lengthened(const std::string& tensor, const Addition& addition, std::int64_t row,
                        std::int64_t rows, std::int64_t column, std::int64_t columns) const;

  std::vector<File> files_;
  std::map<std::string, WeightStore> stored_;  // components that lengths are given to
  std::map<std::pair<std::string, std::string>, std::vector<Addition>> additions_;
};

}  // namespace troupe::models
