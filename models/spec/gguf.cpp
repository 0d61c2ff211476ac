#include "models/spec/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/format.h"
#include "base/numbers.h"

namespace troupe::spec {
namespace {

constexpr std::array<char, 4> kMagic = {'G', 'G', 'U', 'F'};
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
constexpr std::uint64_t kMostEntries = 65'536;
constexpr std::uint64_t kMostText = 1U << 20U;
constexpr std::uint32_t kMostDimensions = 4;
constexpr std::uint64_t kMostSides = 16;
constexpr std::uint64_t kMostAlignment = 1U << 20U;
/// Shape of a tensor that has more dimensions than GGUF allows, as ComfyUI's converter writes it.
constexpr std::string_view kOriginalShape = "comfy.gguf.orig_shape.";

static_assert(std::endian::native == std::endian::little, "GGUF's numbers are read as they lie");

[[noreturn]] void refuse_gguf(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("[load_gguf] " + file.string() + ": " + why);
}

/// ggml's numbers of its types.
struct GgmlType {
  std::uint32_t number;
  Dtype dtype;
};
constexpr GgmlType kTypes[] = {{0, Dtype::float32},  {1, Dtype::float16}, {2, Dtype::q4_0},
                               {3, Dtype::q4_1},     {6, Dtype::q5_0},    {7, Dtype::q5_1},
                               {8, Dtype::q8_0},     {10, Dtype::q2_k},   {11, Dtype::q3_k},
                               {12, Dtype::q4_k},    {13, Dtype::q5_k},   {14, Dtype::q6_k},
                               {30, Dtype::bfloat16}};

std::string names_of_types() {
  std::string names;
  for (const GgmlType& type : kTypes)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", dtype_name(type.dtype));
  return names;
}

/// Kinds of values that a key may have, by GGUF's numbers.
enum class ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  text,
  list,
  u64,
  i64,
  f64
};

/// A header that is read from front to back; each reading is bounded by what is left of it.
class GgufHeader {
 public:
  explicit GgufHeader(const std::filesystem::path& file)
      : file_(file), stream_(file, std::ios::binary) {
    std::error_code error;
    size_ = std::filesystem::file_size(file, error);
    if (error || !stream_) refuse_gguf(file, "cannot be read");
  }

  template <typename Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::uint64_t>();
    if (size > kMostText)
      refuse_gguf(file_, fmt::format("has a text of {} bytes at {}, at most {} are read", size,
                                     position_, kMostText));
    return {take(size), size};
  }
  void skip(std::uint64_t bytes) { take(bytes); }

  std::uint64_t position() const { return position_; }
  std::uint64_t file_size() const { return size_; }
  const std::filesystem::path& file() const { return file_; }

 private:
  /// The next bytes, until the next reading.
  const char* take(std::uint64_t bytes) {
    const std::uint64_t most = std::min(size_, kMostHeaderBytes);
    if (bytes > most - position_)
      refuse_gguf(file_,
                  fmt::format("has a header that goes on beyond {} bytes, {}", most,
                              size_ > kMostHeaderBytes ? "the most that is read" : "its end"));
    const std::uint64_t end = position_ + bytes;
    if (end > read_.size()) {
      const std::uint64_t before = read_.size();
      read_.resize(std::min(most, std::max(end, before + kChunk)));
      stream_.read(read_.data() + before, static_cast<std::streamsize>(read_.size() - before));
      if (!stream_) refuse_gguf(file_, "cannot be read");
    }
    return read_.data() + std::exchange(position_, end);
  }

  static constexpr std::uint64_t kChunk = 1U << 20U;

  const std::filesystem::path& file_;
  std::ifstream stream_;
  std::string read_;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

/// Returns what `use` does with a zero of the number's type; `otherwise` for a text, a list and
/// what GGUF does not know.
template <typename Result, typename Use>
Result with_number_type(ValueType type, Result otherwise, Use use) {
  switch (type) {
    case ValueType::u8:
    case ValueType::boolean:
      return use(std::uint8_t{});
    case ValueType::i8:
      return use(std::int8_t{});
    case ValueType::u16:
      return use(std::uint16_t{});
    case ValueType::i16:
      return use(std::int16_t{});
    case ValueType::u32:
      return use(std::uint32_t{});
    case ValueType::i32:
      return use(std::int32_t{});
    case ValueType::f32:
      return use(float{});
    case ValueType::u64:
      return use(std::uint64_t{});
    case ValueType::i64:
      return use(std::int64_t{});
    case ValueType::f64:
      return use(double{});
    case ValueType::text:
    case ValueType::list:
      break;
  }
  return otherwise;
}

/// Reads the number of a key as text; nothing for a text or a list.
std::optional<std::string> gguf_number(GgufHeader& header, ValueType type) {
  return with_number_type(type, std::optional<std::string>(), [&](auto zero) {
    const auto value = header.number<decltype(zero)>();
    if (type == ValueType::boolean)
      return std::optional<std::string>(value != 0 ? "true" : "false");
    return std::optional(fmt::format("{}", value));
  });
}

struct GgufKeys {
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<std::int64_t>> shapes;  // by the tensor's name
};

/// Reads the shape of a tensor, and passes over all other lists.
void read_gguf_list(GgufHeader& header, const std::string& key, GgufKeys& keys) {
  const auto type = static_cast<ValueType>(header.number<std::uint32_t>());
  const auto count = header.number<std::uint64_t>();
  if (key.starts_with(kOriginalShape)) {
    if (type != ValueType::i32 || count > kMostSides)
      refuse_gguf(header.file(), "key \"" + key + "\" is not the shape of a tensor");
    auto& shape = keys.shapes[key.substr(kOriginalShape.size())];
    for (std::uint64_t i = 0; i < count; ++i)
      shape.push_back(header.number<std::int32_t>());
  } else if (type == ValueType::text) {
    for (std::uint64_t i = 0; i < count; ++i)
      header.skip(header.number<std::uint64_t>());
  } else {
    std::uint64_t bytes =
        with_number_type(type, std::uint64_t{0}, [](auto zero) { return sizeof zero; });
    if (bytes == 0)
      refuse_gguf(header.file(), fmt::format("key \"{}\" is a list of type {}, which is not read",
                                             key, static_cast<std::uint32_t>(type)));
    if (__builtin_mul_overflow(bytes, count, &bytes))
      refuse_gguf(header.file(), "key \"" + key + "\" is a list too long to count");
    header.skip(bytes);
  }
}

GgufKeys read_gguf_keys(GgufHeader& header, std::uint64_t count) {
  GgufKeys keys;
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string key = header.text();
    if (!names.insert(key).second) refuse_gguf(header.file(), "has the key \"" + key + "\" twice");
    const auto type = header.number<std::uint32_t>();
    if (static_cast<ValueType>(type) == ValueType::list) {
      read_gguf_list(header, key, keys);
    } else if (static_cast<ValueType>(type) == ValueType::text) {
      keys.texts[key] = header.text();
    } else if (auto number = gguf_number(header, static_cast<ValueType>(type))) {
      keys.texts[key] = std::move(*number);
    } else {
      refuse_gguf(header.file(),
                  fmt::format("key \"{}\" has type {}, which GGUF does not know", key, type));
    }
  }
  return keys;
}

Dtype ggml_dtype(const std::filesystem::path& file, const std::string& tensor,
                 std::uint32_t number) {
  const auto* known = std::ranges::find(kTypes, number, &GgmlType::number);
  if (known == std::end(kTypes))
    refuse_gguf(file,
                fmt::format("tensor \"{}\" has ggml's type {}, which is not read (read are {})",
                            tensor, number, names_of_types()));
  return known->dtype;
}

std::uint64_t ggml_bytes(const std::filesystem::path& file, const TensorEntry& entry) {
  const DtypeBlock block = dtype_block(entry.dtype);
  const std::int64_t row = entry.shape.empty() ? 1 : entry.shape.back();
  if (row % static_cast<std::int64_t>(block.elements) != 0)
    refuse_gguf(file, fmt::format("tensor \"{}\" has rows of {} elements, and {} keeps {} together",
                                  entry.name, row, dtype_name(entry.dtype), block.elements));
  std::uint64_t elements = 1;
  for (const std::int64_t size : entry.shape) {
    if (size < 1 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) ||
        elements > INT64_MAX / 16)
      refuse_gguf(file, "tensor \"" + entry.name + "\" has the shape " + shape_text(entry.shape));
  }
  return elements / block.elements * block.bytes;
}

/// Gives the tensor the shape that it had before it was stored with fewer dimensions.
void restore_shape(const std::filesystem::path& file, const GgufKeys& keys, TensorEntry& entry) {
  const auto shape = keys.shapes.find(entry.name);
  if (shape == keys.shapes.end()) return;
  std::int64_t before = 1, after = 1;
  for (const std::int64_t size : entry.shape)
    before *= size;
  for (const std::int64_t size : shape->second) {
    if (size < 1 || __builtin_mul_overflow(after, size, &after)) after = -1;
    if (after < 0) break;
  }
  if (before != after)
    refuse_gguf(file, fmt::format("tensor \"{}\" has the shape {}, and its key says {}", entry.name,
                                  shape_text(entry.shape), shape_text(shape->second)));
  entry.shape = shape->second;
}

void check_gguf_ranges(const std::filesystem::path& file, std::uint64_t file_size,
                       std::vector<TensorEntry> entries) {
  std::ranges::sort(entries, {}, &TensorEntry::begin);
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : entries) {
    if (entry.end > file_size)
      refuse_gguf(file, fmt::format("tensor \"{}\" ends at {}, file has {} bytes", entry.name,
                                    entry.end, file_size));
    if (before != nullptr && entry.begin < before->end)
      refuse_gguf(file, fmt::format("tensor \"{}\" begins at {}, before tensor \"{}\" ends at {}",
                                    entry.name, entry.begin, before->name, before->end));
    before = &entry;
  }
}

}  // namespace

bool is_weight_file(const std::filesystem::path& file) {
  std::string kind = file.extension().string();
  std::ranges::transform(kind, kind.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return !file.filename().native().starts_with('.') && (kind == ".safetensors" || kind == ".gguf");
}

bool is_gguf(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::array<char, kMagic.size()> begin{};
  stream.read(begin.data(), begin.size());
  return stream && begin == kMagic;
}

GgufContents read_gguf(const std::filesystem::path& file) {
  if (!is_gguf(file)) refuse_gguf(file, "is no GGUF file");
  GgufHeader header(file);
  header.skip(kMagic.size());
  const auto version = header.number<std::uint32_t>();
  if (version != 2 && version != 3)
    refuse_gguf(file,
                fmt::format("is GGUF of version {} (read are 2 and 3, little-endian)", version));
  const auto tensors = header.number<std::uint64_t>();
  const auto count = header.number<std::uint64_t>();
  if (tensors > kMostEntries || count > kMostEntries)
    refuse_gguf(file, fmt::format("has {} tensors and {} keys, at most {} of each are read",
                                  tensors, count, kMostEntries));
  GgufKeys keys = read_gguf_keys(header, count);
  GgufContents contents;
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    TensorEntry entry{.name = header.text(), .dtype = {}, .shape = {}, .file = file};
    if (!names.insert(entry.name).second)
      refuse_gguf(file, "has the tensor \"" + entry.name + "\" twice");
    const auto dimensions = header.number<std::uint32_t>();
    if (dimensions > kMostDimensions)
      refuse_gguf(file, fmt::format("tensor \"{}\" has {} dimensions", entry.name, dimensions));
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto size = header.number<std::uint64_t>();
      if (size > INT64_MAX)
        refuse_gguf(file, "tensor \"" + entry.name + "\" is too large to count");
      entry.shape.insert(entry.shape.begin(), static_cast<std::int64_t>(size));
    }
    entry.dtype = ggml_dtype(file, entry.name, header.number<std::uint32_t>());
    entry.begin = header.number<std::uint64_t>();
    const std::uint64_t bytes = ggml_bytes(file, entry);
    if (__builtin_add_overflow(entry.begin, bytes, &entry.end))
      refuse_gguf(file, "tensor \"" + entry.name + "\" ends beyond all files");
    restore_shape(file, keys, entry);
    contents.tensors.push_back(std::move(entry));
  }

  std::uint64_t alignment = 32;
  if (const auto given = keys.texts.find("general.alignment"); given != keys.texts.end()) {
    const auto number = parse_number<std::uint64_t>(given->second);
    if (!number || *number < 1 || *number > kMostAlignment || !std::has_single_bit(*number))
      refuse_gguf(file, "general.alignment is " + given->second + ", which is no power of two");
    alignment = *number;
  }
  const std::uint64_t data = (header.position() + alignment - 1) / alignment * alignment;
  for (TensorEntry& entry : contents.tensors) {
    if (__builtin_add_overflow(entry.end, data, &entry.end))
      refuse_gguf(file, "tensor \"" + entry.name + "\" ends beyond all files");
    entry.begin += data;
  }
  check_gguf_ranges(file, header.file_size(), contents.tensors);
  contents.metadata = std::move(keys.texts);
  return contents;
}

}  // namespace troupe::spec
