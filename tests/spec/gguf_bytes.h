#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::testing {

template <typename Number>
std::string little_endian(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

inline std::string gguf_string(const std::string& text) {
  return little_endian<std::uint64_t>(text.size()) + text;
}

/// Keys of a GGUF file: a text, a number, a list of texts, the shape of a tensor.
inline std::string gguf_text(const std::string& key, const std::string& value) {
  return gguf_string(key) + little_endian<std::uint32_t>(8) + gguf_string(value);
}
inline std::string gguf_number(const std::string& key, std::uint32_t value) {
  return gguf_string(key) + little_endian<std::uint32_t>(4) + little_endian(value);
}
inline std::string gguf_texts(const std::string& key, const std::vector<std::string>& values) {
  auto bytes = gguf_string(key) + little_endian<std::uint32_t>(9) +
               little_endian<std::uint32_t>(8) + little_endian<std::uint64_t>(values.size());
  for (const auto& value : values)
    bytes += gguf_string(value);
  return bytes;
}
inline std::string gguf_shape(const std::string& key, const std::vector<std::int32_t>& values) {
  auto bytes = gguf_string(key) + little_endian<std::uint32_t>(9) +
               little_endian<std::uint32_t>(5) + little_endian<std::uint64_t>(values.size());
  for (const auto value : values)
    bytes += little_endian(value);
  return bytes;
}

/// A tensor's line in the header: sides, innermost first, ggml's number of its type, and its place.
inline std::string gguf_tensor(const std::string& name, const std::vector<std::uint64_t>& sides,
                               std::uint32_t type, std::uint64_t offset) {
  auto bytes = gguf_string(name) + little_endian(static_cast<std::uint32_t>(sides.size()));
  for (const auto side : sides)
    bytes += little_endian(side);
  return bytes + little_endian(type) + little_endian(offset);
}

/// A GGUF file of version 3 with keys and tensors, whose data is zeros, aligned to 32 bytes, or to
/// 64 where a key speaks of it.
inline std::string gguf_file(const std::vector<std::string>& keys,
                             const std::vector<std::string>& tensors, std::size_t data_bytes) {
  std::string bytes = "GGUF" + little_endian<std::uint32_t>(3) +
                      little_endian<std::uint64_t>(tensors.size()) +
                      little_endian<std::uint64_t>(keys.size());
  for (const auto& key : keys)
    bytes += key;
  for (const auto& tensor : tensors)
    bytes += tensor;
  const bool wide = bytes.find("general.alignment") != std::string::npos;
  const std::size_t alignment = wide ? 64 : 32;
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  return bytes + std::string(data_bytes, '\0');
}

}  // namespace troupe::testing
