#include "models/spec/weight_index.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <stdexcept>

#include "base/format.h"
#include "models/spec/gguf.h"
#include "models/spec/json_text.h"
#include "models/spec/torch_file.h"

namespace troupe::spec {
namespace {

struct Row {
  Dtype dtype;
  DtypeBlock block;
  std::string_view name;
  std::string_view safetensors_name;
};

constexpr std::array<Row, 21> kRows{{
    {Dtype::float32, {1, 4}, "float32", "F32"},
    {Dtype::bfloat16, {1, 2}, "bfloat16", "BF16"},
    {Dtype::float16, {1, 2}, "float16", "F16"},
    {Dtype::float64, {1, 8}, "float64", "F64"},
    {Dtype::int64, {1, 8}, "int64", "I64"},
    {Dtype::int32, {1, 4}, "int32", "I32"},
    {Dtype::int8, {1, 1}, "int8", "I8"},
    {Dtype::uint8, {1, 1}, "uint8", "U8"},
    {Dtype::boolean, {1, 1}, "bool", "BOOL"},
    {Dtype::float8_e4m3, {1, 1}, "float8_e4m3", "F8_E4M3"},
    {Dtype::float8_e5m2, {1, 1}, "float8_e5m2", "F8_E5M2"},
    {Dtype::q4_0, {32, 18}, "q4_0", ""},
    {Dtype::q4_1, {32, 20}, "q4_1", ""},
    {Dtype::q5_0, {32, 22}, "q5_0", ""},
    {Dtype::q5_1, {32, 24}, "q5_1", ""},
    {Dtype::q8_0, {32, 34}, "q8_0", ""},
    {Dtype::q2_k, {256, 84}, "q2_k", ""},
    {Dtype::q3_k, {256, 110}, "q3_k", ""},
    {Dtype::q4_k, {256, 144}, "q4_k", ""},
    {Dtype::q5_k, {256, 176}, "q5_k", ""},
    {Dtype::q6_k, {256, 210}, "q6_k", ""},
}};

const Row& row(Dtype dtype) {
  return kRows.at(static_cast<std::size_t>(dtype));
}

}  // namespace

DtypeBlock dtype_block(Dtype dtype) {
  return row(dtype).block;
}

std::size_t dtype_bytes(Dtype dtype) {
  if (is_packed(dtype))
    throw std::invalid_argument("[dtype_bytes] elements of " + std::string(dtype_name(dtype)) +
                                " have no size of their own");
  return dtype_block(dtype).bytes;
}

std::string_view dtype_name(Dtype dtype) {
  return row(dtype).name;
}

std::string_view safetensors_dtype_name(Dtype dtype) {
  return row(dtype).safetensors_name;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (!name.empty() && (name == row.name || name == row.safetensors_name)) return row.dtype;
  }
  return std::nullopt;
}

struct WeightHeader {
  std::string json;
  std::uint64_t data_begin = 0;
  std::uint64_t file_size = 0;
};

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kMaxIndexBytes = 100'000'000;
constexpr std::size_t kMaxDimensions = 16;
constexpr std::size_t kMaxTensors = 65'536;
constexpr std::size_t kMaxShownName = 200;
constexpr std::uint64_t kPrefixBytes = 8;

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("[load_safetensors] " + file.string() + ": " + why);
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& tensor,
                       const std::string& why) {
  const bool whole = tensor.size() <= kMaxShownName;
  const nlohmann::json name = whole ? tensor : tensor.substr(0, kMaxShownName) + "...";
  fail(file,
       "tensor " + name.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + " " + why);
}

[[noreturn]] void too_many_tensors(const std::filesystem::path& file) {
  fail(file,
       fmt::format("has more than {} tensors, the most that a component may have", kMaxTensors));
}

/// Returns the length of the header from the file's first bytes; `begin` has fewer than 8 bytes
/// only if the file has.
std::uint64_t header_size(const std::filesystem::path& file, std::string_view begin,
                          std::uint64_t file_size) {
  if (file_size < kPrefixBytes)
    fail(file, fmt::format("has {} bytes, a header needs at least 8", file_size));
  std::uint64_t size = 0;
  for (std::size_t i = kPrefixBytes; i-- > 0;)
    size = size << 8U | static_cast<unsigned char>(begin[i]);
  if (size > kMaxHeaderBytes) {
    fail(file, fmt::format("is not a safetensors file: its first 8 bytes would announce a header "
                           "of {} bytes, at most {} are allowed",
                           size, kMaxHeaderBytes));
  }
  if (size > file_size - kPrefixBytes)
    fail(file, fmt::format("header ends at {}, file has {} bytes", size + kPrefixBytes, file_size));
  return size;
}

/// `budget`: how long the header may be; less what it has is left.
WeightHeader read_header(const std::filesystem::path& file, std::uint64_t& budget) {
  std::error_code error;
  if (is_folder(file)) fail(file, "is a folder");
  if (!is_file(file)) fail(file, "no such file");
  WeightHeader header;
  header.file_size = std::filesystem::file_size(file, error);
  if (error) fail(file, error.message());
  std::ifstream stream(file, std::ios::binary);
  std::array<char, 64> begin{};
  const auto first = std::min<std::uint64_t>(header.file_size, begin.size());
  stream.read(begin.data(), static_cast<std::streamsize>(first));
  if (!stream) fail(file, "cannot be read");
  if (const auto why = lfs_pointer_text({begin.data(), begin.size()}); !why.empty())
    fail(file, why);
  const auto size = header_size(file, {begin.data(), begin.size()}, header.file_size);
  if (size > budget) {
    fail(file, fmt::format("has a header of {} bytes: with those of the shards before it that is "
                           "more than {}, the most that a component may have",
                           size, kMaxHeaderBytes));
  }
  budget -= size;
  header.json.resize(size);
  stream.seekg(kPrefixBytes);
  stream.read(header.json.data(), static_cast<std::streamsize>(size));
  if (!stream) fail(file, "cannot be read");
  header.data_begin = size + kPrefixBytes;
  return header;
}

std::uint64_t unsigned_value(const nlohmann::json& value, const std::filesystem::path& file,
                             const std::string& tensor, const char* what) {
  if (!value.is_number_unsigned()) {
    fail(file, tensor, std::string("has a ") + what + " that is not a natural number");
  }
  return value.get<std::uint64_t>();
}

TensorEntry read_entry(const std::filesystem::path& file, const std::string& name,
                       const nlohmann::json& value, const WeightHeader& header) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    fail(file, name, "must have exactly dtype, shape and data_offsets");
  }
  TensorEntry entry{.name = name, .dtype = {}, .shape = {}, .file = file};
  const auto& dtype = value["dtype"];
  const auto known = dtype.is_string() ? parse_dtype(dtype.get<std::string>()) : std::nullopt;
  if (!known || safetensors_dtype_name(*known) != dtype.get<std::string>()) {
    fail(file, name, "has the unsupported dtype " + dtype.dump());
  }
  entry.dtype = *known;

  const auto& shape = value["shape"];
  const auto& offsets = value["data_offsets"];
  if (!shape.is_array() || shape.size() > kMaxDimensions) fail(file, name, "has a bad shape");
  if (!offsets.is_array() || offsets.size() != 2) fail(file, name, "has bad data_offsets");
  std::uint64_t bytes = dtype_bytes(entry.dtype);
  bool empty = false;
  for (const auto& dimension : shape) {
    const std::uint64_t size = unsigned_value(dimension, file, name, "dimension");
    empty = empty || size == 0;
    if (size > static_cast<std::uint64_t>(INT64_MAX) ||
        (size != 0 && __builtin_mul_overflow(bytes, size, &bytes))) {
      fail(file, name, "has a shape too large to count");
    }
    entry.shape.push_back(static_cast<std::int64_t>(size));
  }
  if (empty) bytes = 0;

  const std::uint64_t begin = unsigned_value(offsets[0], file, name, "data offset");
  const std::uint64_t end = unsigned_value(offsets[1], file, name, "data offset");
  const std::uint64_t data_size = header.file_size - header.data_begin;
  if (begin > end) {
    fail(file, name, fmt::format("begins at {} and ends at {}", begin, end));
  }
  if (end > data_size) {
    const bool countable = end <= UINT64_MAX - header.data_begin;
    fail(file, name,
         fmt::format("ends at {}, file has {} bytes", countable ? end + header.data_begin : end,
                     header.file_size));
  }
  if (end - begin != bytes) {
    fail(file, name,
         "has " + std::to_string(end - begin) + " bytes, its shape " + shape_text(entry.shape) +
             " of " + dtype.get<std::string>() + " needs " + std::to_string(bytes));
  }
  entry.begin = begin + header.data_begin;
  entry.end = end + header.data_begin;
  return entry;
}

void check_coverage(const std::filesystem::path& file, std::vector<TensorEntry> entries,
                    const WeightHeader& header) {
  std::ranges::sort(entries, {}, [](const TensorEntry& e) { return std::pair(e.begin, e.end); });
  std::uint64_t at = header.data_begin;
  const std::string* previous = nullptr;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < at) {
      fail(file, entry.name,
           "begins at " + std::to_string(entry.begin) + ", before tensor \"" + *previous +
               "\" ends at " + std::to_string(at));
    }
    if (entry.begin > at) {
      fail(file, entry.name, fmt::format("begins at {}, leaving a hole from {}", entry.begin, at));
    }
    at = entry.end;
    previous = &entry.name;
  }
  if (at != header.file_size) {
    fail(file, fmt::format("tensors end at {}, file has {} bytes", at, header.file_size));
  }
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

void WeightIndex::add_file(const std::filesystem::path& file, const WeightHeader& header) {
  const auto json = parse_json(header.json, file);
  if (!json.is_object()) fail(file, "header is not a JSON object");
  if (json.size() > kMaxTensors + json.count("__metadata__") - tensors_.size())
    too_many_tensors(file);
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) fail(file, "__metadata__ is not a JSON object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) fail(file, "__metadata__ key \"" + key + "\" is not a string");
        if (files_.empty()) metadata_.emplace(key, text.get<std::string>());
      }
      continue;
    }
    entries.push_back(read_entry(file, name, value, header));
  }
  check_coverage(file, entries, header);
  files_.push_back(file);
  std::ranges::move(entries, std::back_inserter(tensors_));
}

void WeightIndex::sort_and_check() {
  std::ranges::sort(tensors_, {}, &TensorEntry::name);
  const auto twice = std::ranges::adjacent_find(tensors_, {}, &TensorEntry::name);
  if (twice != tensors_.end()) {
    fail(label_, twice->name,
         "is both in " + twice->file.string() + " and in " + std::next(twice)->file.string());
  }
}

WeightIndex WeightIndex::read_file(const std::filesystem::path& file) {
  WeightIndex index;
  index.label_ = file;
  if (is_file(file) && (is_gguf(file) || file.extension() == ".gguf")) {
    auto contents = read_gguf(file);
    index.files_.push_back(file);
    index.metadata_ = std::move(contents.metadata);
    return index.with_tensors(std::move(contents.tensors));
  }
  std::uint64_t header_budget = kMaxHeaderBytes;
  index.add_file(file, header_budget);
  index.sort_and_check();
  return index;
}

void WeightIndex::add_file(const std::filesystem::path& file, std::uint64_t& header_budget) {
  if (!is_file(file) || !(is_torch_file(file) || is_torch_name(file)))
    return add_file(file, read_header(file, header_budget));
  auto tensors = read_torch_file(file);
  if (tensors.size() > kMaxTensors - tensors_.size()) too_many_tensors(file);
  files_.push_back(file);
  std::ranges::move(tensors, std::back_inserter(tensors_));
}

WeightIndex WeightIndex::of_bytes(std::string_view bytes, const std::filesystem::path& name,
                                  std::uint64_t most_header) {
  const auto size = header_size(name, bytes, bytes.size());
  if (size > most_header)
    fail(name, fmt::format("has a header of {} bytes, at most {} are taken", size, most_header));
  WeightIndex index;
  index.label_ = name;
  index.add_file(name, {.json = std::string(bytes.substr(kPrefixBytes, size)),
                        .data_begin = kPrefixBytes + size,
                        .file_size = bytes.size()});
  index.sort_and_check();
  return index;
}

WeightIndex WeightIndex::read_sharded(const std::filesystem::path& index_file) {
  WeightIndex index;
  index.label_ = index_file;
  const auto json = parse_json(read_text_file(index_file, kMaxIndexBytes), index_file);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    fail(index_file, "has no weight_map");
  }
  const auto& map = json["weight_map"];
  if (map.size() > kMaxTensors) too_many_tensors(index_file);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map.items()) {
    if (!shard.is_string()) fail(index_file, tensor, "has a shard that is not a string");
    const auto name = shard.get<std::string>();
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      fail(index_file, tensor, "has the shard \"" + name + "\", which is not a plain file name");
    }
    shards.insert(name);
  }
  std::uint64_t header_budget = kMaxHeaderBytes;
  for (const std::string& shard : shards)
    index.add_file(index_file.parent_path() / shard, header_budget);
  index.sort_and_check();
  for (const auto& [tensor, shard] : map.items()) {
    const auto* entry = index.find(tensor);
    if (entry == nullptr || entry->file.filename() != shard.get<std::string>()) {
      fail(index_file, tensor, "is not in its shard " + shard.get<std::string>());
    }
  }
  for (const TensorEntry& entry : index.tensors_) {
    if (!map.contains(entry.name)) {
      fail(index_file, entry.name, "of " + entry.file.string() + " is not in the weight_map");
    }
  }
  return index;
}

namespace {

using IsWeights = bool(const std::filesystem::path& file);

/// Returns the folder's only file of weights of a kind; "" where there is none. Throws where there
/// are several.
std::filesystem::path only_weights(const std::filesystem::path& folder, IsWeights* is_weights) {
  std::filesystem::path found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_weights(entry->path()) || !is_file(entry->path())) continue;
    if (!found.empty()) {
      const auto both = std::minmax(found, entry->path());
      fail(folder, "has " + both.first.filename().string() + " and " +
                       both.second.filename().string() + ": leave the one that is meant");
    }
    found = entry->path();
  }
  return found;
}

}  // namespace

WeightIndex WeightIndex::read_folder(const std::filesystem::path& folder,
                                     std::span<const std::string_view> stems) {
  std::string tried;
  for (std::string variant : {"", ".fp16", ".bf16"}) {
    for (std::string_view stem_view : stems) {
      const std::string stem(stem_view);
      const auto file = folder / (stem + variant + ".safetensors");
      if (is_file(file)) return read_file(file);
      for (const std::string& name : {stem + ".safetensors.index" + variant + ".json",
                                      stem + variant + ".safetensors.index.json"}) {
        if (is_file(folder / name)) return read_sharded(folder / name);
      }
      if (variant.empty()) tried += (tried.empty() ? "" : ", ") + stem + ".safetensors";
    }
  }
  for (const std::string variant : {"", ".fp16", ".bf16"}) {
    for (const std::string_view stem : stems) {
      // transformers calls these otherwise than its safetensors files.
      const std::string own = stem == "model" ? "pytorch_model" : std::string(stem);
      if (is_file(folder / (own + variant + ".bin")))
        return read_file(folder / (own + variant + ".bin"));
      for (const std::string& name :
           {own + ".bin.index" + variant + ".json", own + variant + ".bin.index.json"}) {
        if (is_file(folder / name)) return read_sharded(folder / name);
      }
    }
  }
  for (IsWeights* is_weights : {is_weight_file, is_torch_name}) {
    if (const auto only = only_weights(folder, is_weights); !only.empty()) return read_file(only);
  }
  fail(folder, "no weights (looked for " + tried +
                   ", sharded or whole, also as fp16 and bf16, and for the same of torch.save's, "
                   ".bin; then for a single safetensors or GGUF file of any name, or one of "
                   "torch.save's, .bin, .ckpt or .pt)");
}

WeightIndex WeightIndex::with_tensors(std::vector<TensorEntry> tensors) const {
  WeightIndex index = *this;
  index.tensors_ = std::move(tensors);
  index.sort_and_check();
  return index;
}

const TensorEntry* WeightIndex::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors_, name, {}, &TensorEntry::name);
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const TensorEntry& WeightIndex::at(std::string_view name) const {
  if (const auto* entry = find(name)) return *entry;
  fail(label_, std::string(name), "is missing");
}

std::uint64_t WeightIndex::bytes(std::string_view prefix) const {
  std::uint64_t total = 0;
  auto entry = std::ranges::lower_bound(tensors_, prefix, {}, &TensorEntry::name);
  for (; entry != tensors_.end() && entry->name.starts_with(prefix); ++entry)
    total += entry->bytes();
  return total;
}

}  // namespace troupe::spec
