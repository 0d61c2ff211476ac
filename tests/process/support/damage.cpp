#include "tests/process/support/damage.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "tests/process/support/models.h"
#include "tests/support/text.h"

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;

void write_all(const fs::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error("[tests] " + file.string() + ": cannot be written");
}

std::uint64_t header_size(const std::string& bytes) {
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  return size;
}

std::string safetensors(const nlohmann::json& header, const std::string& data) {
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  return bytes + text + data;
}

/// Writes a number into the first element of a float32 tensor, or into all of them.
void put(const fs::path& file, const std::string& tensor, float number, bool all) {
  std::string bytes = read_all(file);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size(bytes)));
  const auto& entry = header.at(tensor);
  if (entry.at("dtype") != "F32") throw std::runtime_error("[tests] " + tensor + " is not F32");
  const auto data = 8 + header_size(bytes);
  const auto& offsets = entry.at("data_offsets");
  const auto begin = data + offsets.at(0).get<std::uint64_t>();
  const auto end = all ? data + offsets.at(1).get<std::uint64_t>() : begin + sizeof number;
  for (auto at = begin; at < end; at += sizeof number)
    std::memcpy(bytes.data() + at, &number, sizeof number);
  write_all(file, bytes);
}

}  // namespace

fs::path copy_of(const std::string& fixture, const fs::path& folder) {
  const fs::path to = folder / "model";
  fs::remove_all(to);
  fs::copy(checkpoint(fixture), to, fs::copy_options::recursive);
  return to;
}

void edit_json(const fs::path& file, const std::function<void(nlohmann::json&)>& change) {
  // Configs may hold -Infinity, which JSON does not have.
  std::string text = read_all(file);
  for (auto at = text.find("-Infinity"); at != std::string::npos; at = text.find("-Infinity"))
    text.replace(at, 9, "\"-inf-\"");
  auto json = nlohmann::json::parse(text);
  change(json);
  text = json.dump(1);
  for (auto at = text.find("\"-inf-\""); at != std::string::npos; at = text.find("\"-inf-\""))
    text.replace(at, 7, "-Infinity");
  write_all(file, text);
}

void edit_header(const fs::path& file, const std::function<void(nlohmann::json&)>& change) {
  const std::string bytes = read_all(file);
  auto header = nlohmann::json::parse(bytes.substr(8, header_size(bytes)));
  change(header);
  write_all(file, safetensors(header, bytes.substr(8 + header_size(bytes))));
}

void fill_with(const fs::path& file, const std::string& tensor, float number) {
  put(file, tensor, number, true);
}

void truncate_file(const fs::path& file, double part) {
  fs::resize_file(file, static_cast<std::uintmax_t>(part * double(fs::file_size(file))));
}

void put_nan(const fs::path& file, const std::string& tensor) {
  put(file, tensor, std::numeric_limits<float>::quiet_NaN(), false);
}

void write_tensor(const fs::path& file, const std::string& name,
                  const std::vector<std::int64_t>& shape, const std::string& dtype, float first) {
  std::size_t count = 1;
  for (const auto size : shape)
    count *= static_cast<std::size_t>(size);
  std::string data(count * (dtype == "F32" ? 4 : 2), '\0');
  if (dtype == "F32" && count > 0) std::memcpy(data.data(), &first, sizeof first);
  write_all(file,
            safetensors(
                {{name, {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {0, data.size()}}}}},
                data));
}

}  // namespace troupe::testing
