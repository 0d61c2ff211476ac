#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/spec/planned_tensors.h"
#include "tests/support/scratch.h"

namespace troupe::testing {

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Size prefix and header, as a safetensors file begins.
inline std::string with_prefix(const std::string& header) {
  std::string bytes;
  for (int i = 0; i < 8; ++i)
    bytes += static_cast<char>(header.size() >> (8 * i) & 0xFFU);
  return bytes + header;
}

/// A safetensors file with these tensors whose data is a hole: full size, no disk space, all zero.
inline void write_sparse_weights(const std::filesystem::path& file,
                                 const std::vector<spec::ExpectedTensor>& tensors,
                                 spec::Dtype dtype) {
  nlohmann::json header = nlohmann::json::object();
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    std::uint64_t bytes = spec::dtype_bytes(dtype);
    for (auto size : tensor.shape)
      bytes *= static_cast<std::uint64_t>(size);
    header[tensor.name] = {{"dtype", spec::safetensors_dtype_name(dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  const std::string head = with_prefix(header.dump());
  write_bytes(file, head);
  std::filesystem::resize_file(file, head.size() + at);
}

/// The message of the exception that `action` throws; empty if it throws none.
template <typename Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace troupe::testing
