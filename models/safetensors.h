#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "models/spec/weight_index.h"
#include "models/unpack_weights.h"

namespace troupe::models {

at::ScalarType scalar_type(spec::Dtype dtype);
/// Throws std::invalid_argument for a type that safetensors files of this project do not hold.
spec::Dtype dtype_of(at::ScalarType type);

/// Throws std::runtime_error "[require_finite] <what>[i, j] is nan" at the first element that is
/// not finite. `tensor` is contiguous, floating and on the CPU.
void require_finite(const at::Tensor& tensor, const std::string& what);

/// Switch: whether loading looks at every value for NaN and infinity.
enum class FiniteCheck { on, off };

/// The tensors of one component, by read-only memory mapping. Copies are cheap and share the
/// mappings; a tensor that views a mapping keeps it alive. Safe to use from several threads.
class WeightStore {
 public:
  /// Maps the files. Throws std::runtime_error if one cannot be mapped or is shorter than the index
  /// says.
  explicit WeightStore(spec::WeightIndex index);

  const spec::WeightIndex& index() const { return index_; }
  bool contains(std::string_view name) const { return index_.contains(name); }

  /// A view of the stored values, without a copy (where the file aligns them); never write to it.
  /// Values of a type that has to be unpacked are a copy, in float32.
  at::Tensor get(std::string_view name) const;
  /// Rows `ids` (int64, on the CPU) of a matrix, as `get` has them; no other row is unpacked.
  at::Tensor rows(std::string_view name, const at::Tensor& ids) const;
  /// The same; throws, naming both, if the shape is another one.
  at::Tensor get(std::string_view name, at::IntArrayRef shape) const;
  /// The values as `dtype` on `device`. A view where nothing has to be converted. With the check
  /// on, throws at a value that is not finite, or that `dtype` cannot hold.
  at::Tensor get(std::string_view name, at::IntArrayRef shape, at::ScalarType dtype,
                 at::Device device = at::kCPU, FiniteCheck check = FiniteCheck::on) const;

  /// Makes the `get` above with a dtype return `change(name, stored values)` in that dtype from now
  /// on. Copies of this store made before are not affected.
  using Change = std::function<at::Tensor(std::string_view name, const at::Tensor& stored)>;
  void adapt(Change change) { change_ = std::move(change); }

  /// Returns the matrix as it is stored, a view of the file, if a product can keep it so
  /// (TensorEntry::stays_packed). Changes of its values (`adapt`) are not in it.
  std::optional<PackedMatrix> packed(std::string_view name) const;

  /// Tells the system that the tensor's pages are not needed for now, so that they no longer count
  /// as resident. Views stay valid and read the file again.
  void release(std::string_view name) const;
  /// The tensor lies in the mapped files.
  bool maps(const at::Tensor& tensor) const;

 private:
  class Mapping;
  const std::shared_ptr<const Mapping>& mapping_of(const spec::TensorEntry& entry) const;
  at::Tensor unpacked(const spec::TensorEntry& entry) const;

  spec::WeightIndex index_;
  Change change_;
  std::map<std::filesystem::path, std::shared_ptr<const Mapping>> mappings_;
};

/// Number of files that have been mapped so far.
std::uint64_t mappings_made();
/// Throws std::runtime_error naming a file in the folder `below` that was mapped after the first
/// `since` files, is still mapped, and is now shorter than when it was mapped: bytes read beyond
/// its end are zeros.
void require_whole_files(std::uint64_t since, const std::filesystem::path& below);

/// Writes a safetensors file under a temporary name beside `path`, then renames it, so that `path`
/// is complete or untouched. Tensors may be on any device and in any layout.
void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

/// All tensors of a file, in memory of their own.
std::map<std::string, at::Tensor> load_safetensors(const std::filesystem::path& path);

}  // namespace troupe::models
