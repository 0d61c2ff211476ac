#pragma once
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troupe::testing {

/// A copy of a fixture that may be spoilt, in `folder`.
std::filesystem::path copy_of(const std::string& fixture, const std::filesystem::path& folder);

/// Changes a JSON file in place.
void edit_json(const std::filesystem::path& file,
               const std::function<void(nlohmann::json&)>& change);
/// Changes a safetensors file's header in place; the data stay.
void edit_header(const std::filesystem::path& file,
                 const std::function<void(nlohmann::json&)>& change);
/// Leaves the first `part` of the file.
void truncate_file(const std::filesystem::path& file, double part);
/// Puts a NaN into the first element of a float32 tensor.
void put_nan(const std::filesystem::path& file, const std::string& tensor);

/// Fills a float32 tensor with one number.
void fill_with(const std::filesystem::path& file, const std::string& tensor, float number);

/// A safetensors file with one tensor of zeros but for `first`, its first element (float32).
void write_tensor(const std::filesystem::path& file, const std::string& name,
                  const std::vector<std::int64_t>& shape, const std::string& dtype = "F32",
                  float first = 0);

}  // namespace troupe::testing
