#include "tests/process/support/tensors.h"

#include <bit>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace troupe::testing {
namespace {

template <class T>
std::vector<T> read_entry(const spec::TensorEntry& entry, spec::Dtype dtype) {
  if (entry.dtype != dtype) {
    throw std::runtime_error("[tests] " + entry.name + " is " +
                             std::string(spec::dtype_name(entry.dtype)) + ", not " +
                             std::string(spec::dtype_name(dtype)));
  }
  std::vector<T> data(entry.bytes() / sizeof(T));
  std::ifstream file(entry.file, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(entry.begin));
  file.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(entry.bytes()));
  if (!file) throw std::runtime_error("[tests] " + entry.file.string() + ": cannot be read");
  return data;
}

}  // namespace

Latents TensorFile::floats(const std::string& name) const {
  const auto& entry = index_.at(name);
  if (entry.dtype == spec::Dtype::int64) {
    const auto whole = read_entry<std::int64_t>(entry, spec::Dtype::int64);
    return {entry.shape, {whole.begin(), whole.end()}};
  }
  if (entry.dtype != spec::Dtype::bfloat16)
    return {entry.shape, read_entry<float>(entry, spec::Dtype::float32)};
  // The upper half of a float32 each.
  Latents wide{entry.shape, {}};
  for (const auto half : read_entry<std::uint16_t>(entry, spec::Dtype::bfloat16))
    wide.data.push_back(std::bit_cast<float>(std::uint32_t{half} << 16U));
  return wide;
}

std::map<std::string, Tensor> TensorFile::behind(const std::string& prefix) const {
  std::map<std::string, Tensor> found;
  for (const auto& entry : index_.tensors()) {
    if (entry.name.starts_with(prefix))
      found.emplace(entry.name.substr(prefix.size()), floats(entry.name));
  }
  return found;
}

Bytes TensorFile::bytes(const std::string& name) const {
  const auto& entry = index_.at(name);
  return {entry.shape, read_entry<std::uint8_t>(entry, spec::Dtype::uint8)};
}

void write_tensors(const std::filesystem::path& file,
                   const std::map<std::string, Tensor>& tensors) {
  nlohmann::json header;
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = end;
    end += tensor.data.size() * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text;
  for (const auto& [name, tensor] : tensors)
    out.write(reinterpret_cast<const char*>(tensor.data.data()),
              static_cast<std::streamsize>(tensor.data.size() * sizeof(float)));
  if (!out.flush()) throw std::runtime_error("[tests] " + file.string() + " cannot be written");
}

}  // namespace troupe::testing
