#include "client/cli/latents_file.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"
#include "models/spec/weight_index.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 30;
constexpr const char* kTensor = "latents";

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error("[latents] " + path + ": " + why);
}

}  // namespace

Latents read_latents(const std::string& path) {
  const std::string bytes = read_file(path, kLargestFile);
  const auto index = spec::WeightIndex::read_file(path);
  const spec::TensorEntry* entry = index.find(kTensor);
  if (entry == nullptr) refuse(path, "has no tensor \"latents\"");
  if (entry->dtype != spec::Dtype::float32) refuse(path, "tensor \"latents\" is not float32");
  if (entry->shape.size() != 4) {
    refuse(path, "tensor \"latents\" has shape " + spec::shape_text(entry->shape) +
                     ", not [n, channels, height / 8, width / 8]");
  }
  if (entry->bytes() == 0) refuse(path, "tensor \"latents\" is empty");
  if (entry->end > bytes.size()) refuse(path, "became shorter while it was read");

  Latents latents{.shape = entry->shape,
                  .data = std::vector<float>(entry->bytes() / sizeof(float))};
  std::memcpy(latents.data.data(), bytes.data() + entry->begin, entry->bytes());
  if (const auto odd = first_not_finite(latents.data))
    refuse(path, fmt::format("tensor \"latents\" is not finite at element {}", *odd));
  return latents;
}

std::string latents_file_bytes(const Latents& latents) {
  const std::size_t data_bytes = latents.data.size() * sizeof(float);
  const nlohmann::json header = {
      {kTensor, {{"dtype", "F32"}, {"shape", latents.shape}, {"data_offsets", {0, data_bytes}}}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  bytes += text;
  bytes.append(reinterpret_cast<const char*>(latents.data.data()), data_bytes);
  return bytes;
}

}  // namespace troupe::cli
