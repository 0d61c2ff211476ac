#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// Returns the number's bytes, the lowest first.
template <typename Number>
std::string little(Number value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i)
    bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i);
  return bytes;
}

/// Returns a zip file of records that are stored as they are.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string bytes, directory;
  for (const auto& [name, data] : records) {
    const auto header = static_cast<std::uint32_t>(bytes.size());
    const auto size = static_cast<std::uint32_t>(data.size());
    const auto length = static_cast<std::uint16_t>(name.size());
    // No flags, not compressed, no time and no sum, then sizes and lengths.
    const std::string facts = std::string(12, '\0') + little(size) + little(size) + little(length) +
                              little(std::uint16_t{0});
    const std::string version(2, '\0');
    bytes += "PK\x03\x04" + version + facts + name + data;
    directory +=
        "PK\x01\x02" + version + version + facts + std::string(10, '\0') + little(header) + name;
  }
  const auto count = static_cast<std::uint16_t>(records.size());
  return bytes + directory + "PK\x05\x06" + std::string(4, '\0') + little(count) + little(count) +
         little(static_cast<std::uint32_t>(directory.size())) +
         little(static_cast<std::uint32_t>(bytes.size())) + std::string(2, '\0');
}

/// Returns a text as pickles have it.
inline std::string pickled(const std::string& text) {
  return "X" + little(static_cast<std::uint32_t>(text.size())) + text;
}

/// Returns the pickle of {"w": a float32 tensor [2, 2] of the storage "0"}, with these strides.
inline std::string pickle_of_tensor(char first_stride = 2, char second_stride = 1) {
  const auto pair = [](char a, char b) { return std::string{'K', a, 'K', b, '\x86'}; };
  return "\x80\x02}" + pickled("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") +
         "ctorch\nFloatStorage\n" + pickled("0") + pickled("cpu") + "K\x04tQK" +
         std::string(1, '\0') + pair(2, 2) + pair(first_stride, second_stride) + "\x89}tRs.";
}

}  // namespace troupe::testing
