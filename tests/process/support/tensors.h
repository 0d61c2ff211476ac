#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/spec/weight_index.h"
#include "troupe/client.h"

namespace troupe::testing {

/// A uint8 tensor, row-major.
struct Bytes {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> data;
};

/// The tensors of one safetensors file, read without torch.
class TensorFile {
 public:
  explicit TensorFile(const std::filesystem::path& file)
      : index_(spec::WeightIndex::read_file(file)) {}

  bool contains(const std::string& name) const { return index_.contains(name); }
  /// A float32 tensor, or one of bfloat16 or int64 as such; throws when there is none of that name
  /// and type.
  Latents floats(const std::string& name) const;
  /// Returns the tensors whose names begin with `prefix`, by the rest of their names.
  std::map<std::string, Tensor> behind(const std::string& prefix) const;
  /// A uint8 tensor; throws when there is none of that name and type.
  Bytes bytes(const std::string& name) const;

 private:
  spec::WeightIndex index_;
};

/// Writes a safetensors file of float32 tensors.
void write_tensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors);

}  // namespace troupe::testing
