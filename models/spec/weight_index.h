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

/// Element types that weights, latents and options may have.
enum class Dtype : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float64,
  int64,
  int32,
  int8,
  uint8,
  boolean
};

/// Size of one element in bytes.
std::size_t dtype_bytes(Dtype dtype);

/// The name used in options and reports: "float32", "bfloat16", ..., "bool".
std::string_view dtype_name(Dtype dtype);

/// The name in a safetensors header: "F32", "BF16", ..., "BOOL".
std::string_view safetensors_dtype_name(Dtype dtype);

/// Reads either kind of name; nothing if it is neither.
std::optional<Dtype> parse_dtype(std::string_view name);

/// Place of one tensor: bytes [begin, end) of `file`, counted from the start of the file.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::float32;
  std::vector<std::int64_t> shape;
  std::filesystem::path file;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
  bool operator==(const TensorEntry&) const = default;
};

/// "[4, 320, 3, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

struct WeightHeader;

/// The table of contents of a component's safetensors file or shards, read from headers alone.
/// Source: the safetensors format (8 bytes little-endian header size, JSON header, data).
/// Reading throws std::runtime_error naming file, tensor and numbers for: a truncated or oversized
/// header (100 MB at most, of all shards together), bad JSON, more than 65,536 tensors, an unknown
/// dtype, a byte range that is out of order, overlaps, leaves a hole, leaves the file or does not
/// match shape × dtype, a tensor named twice, a shard that is missing or outside the folder, a
/// tensor that the shard index names and its shard lacks.
class WeightIndex {
 public:
  /// Reads one `*.safetensors` file.
  static WeightIndex read_file(const std::filesystem::path& file);
  /// Reads the bytes of a safetensors file, which entries and errors call `name`, with a header of
  /// at most `most_header` bytes.
  static WeightIndex of_bytes(std::string_view bytes, const std::filesystem::path& name,
                              std::uint64_t most_header);
  /// Reads a `*.safetensors.index.json` and the shards that it names, which lie beside it.
  static WeightIndex read_sharded(const std::filesystem::path& index_file);
  /// Reads the first of `stems` for which `stem.safetensors` or its shard index exists in `folder`;
  /// after all of them the same with the variants fp16 and bf16.
  static WeightIndex read_folder(const std::filesystem::path& folder,
                                 std::span<const std::string_view> stems);

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
  void sort_and_check();

  std::filesystem::path label_;
  std::vector<std::filesystem::path> files_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace troupe::spec
