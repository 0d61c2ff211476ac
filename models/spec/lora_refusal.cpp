#include "models/spec/lora_refusal.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace troupe::spec {

std::string in_quotes(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void refuse_lora(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("[load_lora] " + file.string() + ": " + why);
}

void refuse_lora(const TensorEntry& entry, const std::string& why) {
  refuse_lora(entry.file, "tensor " + in_quotes(entry.name) + " " + why);
}

}  // namespace troupe::spec
