#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::spec {

/// Element types that weights, latents and options may have. Those from `q4_0` on are GGUF's:
/// blocks of elements of few bits with common scales.
enum class Dtype : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float64,
  int64,
  int32,
  int8,
  uint8,
  boolean,
  float8_e4m3,
  float8_e5m2,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
};

/// Elements that are stored together, and their bytes: 1 and the element's size for all types but
/// those of blocks.
struct DtypeBlock {
  std::size_t elements = 1;
  std::size_t bytes = 0;

  bool operator==(const DtypeBlock&) const = default;
};
DtypeBlock dtype_block(Dtype dtype);
inline bool is_packed(Dtype dtype) {
  return dtype_block(dtype).elements > 1;
}
inline bool is_float8(Dtype dtype) {
  return dtype == Dtype::float8_e4m3 || dtype == Dtype::float8_e5m2;
}
/// Returns whether values of the type have to be unpacked before anything is computed with them.
inline bool needs_unpacking(Dtype dtype) {
  return is_packed(dtype) || is_float8(dtype);
}

/// Size of one element in bytes; throws std::invalid_argument for a type of blocks.
std::size_t dtype_bytes(Dtype dtype);

/// The name used in options and reports: "float32", "bfloat16", ..., "bool", "q4_k".
std::string_view dtype_name(Dtype dtype);

/// The name in a safetensors header: "F32", "BF16", ..., "BOOL"; "" for a type that those files do
/// not hold.
std::string_view safetensors_dtype_name(Dtype dtype);

/// Reads either kind of name; nothing if it is neither.
std::optional<Dtype> parse_dtype(std::string_view name);

/// Way in which a stored tensor differs from the one that is read.
enum class StoredAs : std::uint8_t {
  as_is,
  halves_swapped,  ///< the second half of the rows comes first
  transposed,      ///< the matrix lies column by column
};

/// Place of one tensor: bytes [begin, end) of `file`, counted from the start of the file.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::float32;
  std::vector<std::int64_t> shape;
  std::filesystem::path file;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  StoredAs stored_as = StoredAs::as_is;
  /// Place in the file of a float32 that all values are multiplied by; none: they are as they are.
  std::optional<std::uint64_t> scale_at = {};

  std::uint64_t bytes() const { return end - begin; }
  std::uint64_t elements() const {
    const auto block = dtype_block(dtype);
    return bytes() / block.bytes * block.elements;
  }
  /// Returns whether a matrix product can keep the tensor in memory as it is stored: its rows are
  /// whole blocks.
  bool stays_packed() const {
    return needs_unpacking(dtype) && shape.size() == 2 && stored_as == StoredAs::as_is &&
           shape[1] % static_cast<std::int64_t>(dtype_block(dtype).elements) == 0;
  }
  bool operator==(const TensorEntry&) const = default;
};

/// "[4, 320, 3, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

struct WeightHeader;

/// The table of contents of a component's file, or of its shards, read from headers alone:
/// safetensors (8 bytes little-endian header size, JSON header, data), GGUF or torch.save's.
/// Reading throws std::runtime_error naming file, tensor and numbers for: a truncated or oversized
/// header (100 MB at most, of all shards together), bad JSON, more than 65,536 tensors, an unknown
/// dtype, a byte range that is out of order, overlaps, leaves a hole, leaves the file or does not
/// match shape × dtype, a tensor named twice, a shard that is missing or outside the folder, a
/// tensor that the shard index names and its shard lacks.
class WeightIndex {
 public:
  /// Reads one safetensors or GGUF file or one of torch.save's (models/spec/torch_file.h); which of
  /// them it is, its first bytes say.
  static WeightIndex read_file(const std::filesystem::path& file);
  /// Reads the bytes of a safetensors file, which entries and errors call `name`, with a header of
  /// at most `most_header` bytes.
  static WeightIndex of_bytes(std::string_view bytes, const std::filesystem::path& name,
                              std::uint64_t most_header);
  /// Reads a `*.safetensors.index.json` or `*.bin.index.json` and the shards that it names, which
  /// lie beside it.
  static WeightIndex read_sharded(const std::filesystem::path& index_file);
  /// Reads the first of `stems` for which `stem.safetensors` or its shard index exists in `folder`;
  /// after all of them the same with the variants fp16 and bf16; else the same of torch.save's
  /// files (`stem.bin`, and `pytorch_model.bin` for `model`); else the folder's only safetensors or
  /// GGUF file, whatever it is called; else the only one of torch.save's.
  static WeightIndex read_folder(const std::filesystem::path& folder,
                                 std::span<const std::string_view> stems);

  /// Returns the index of the same files that has these tensors instead.
  WeightIndex with_tensors(std::vector<TensorEntry> tensors) const;

  /// Returns null if there is no tensor of that name.
  const TensorEntry* find(std::string_view name) const;
  /// Throws if there is none of that name.
  const TensorEntry& at(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// Sorted by name.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const std::vector<std::filesystem::path>& files() const { return files_; }
  /// `__metadata__` of the file, or of the first shard.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The file, or the shard index, that stands for the whole in errors.
  const std::filesystem::path& label() const { return label_; }
  /// Bytes of all tensors whose name begins with `prefix`.
  std::uint64_t bytes(std::string_view prefix = "") const;

  bool operator==(const WeightIndex&) const = default;

 private:
  void add_file(const std::filesystem::path& file, const WeightHeader& header);
  void add_file(const std::filesystem::path& file, std::uint64_t& header_budget);
  void sort_and_check();

  std::filesystem::path label_;
  std::vector<std::filesystem::path> files_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace troupe::spec
