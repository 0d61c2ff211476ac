#include "transport/json/request_json.h"

#include "transport/wire/request_fields.h"

namespace troupe::wire {

namespace {

template <class T>
const T& json_value(const T& value) {
  return value;
}

template <class T>
nlohmann::json json_value(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

template <Choice E>
std::string json_value(const E& value) {
  return to_string(value);
}

nlohmann::json json_value(const std::vector<Lora>& loras) {
  auto list = nlohmann::json::array();
  for (const auto& lora : loras) {
    list.push_back({{"file", lora.path}, {"scale", lora.scale}});
    if (lora.of_second) list.back()["transformer_2"] = true;
  }
  return list;
}

nlohmann::json json_value(const std::vector<Embedding>& embeddings) {
  auto list = nlohmann::json::array();
  for (const auto& embedding : embeddings)
    list.push_back({{"file", embedding.path}, {"token", embedding.token}});
  return list;
}

}  // namespace

nlohmann::json request_json(const ImageRequest& request, int sampler_steps, int skipped_steps) {
  nlohmann::json out = {{"height", request.output_height},
                        {"width", request.output_width},
                        {"steps", sampler_steps},
                        {"skipped_steps", skipped_steps},
                        {"init_latents", request.init_latents_blob != 0},
                        {"init_image", request.init_image_bytes != 0},
                        {"mask_image", request.mask_image_bytes != 0},
                        {"images", request.images.size()},
                        {"last_image", request.last_image.bytes != 0},
                        {"control_images", request.control_images.size()},
                        {"prompt_embeds", !request.prompt_embeds.empty()}};
  for_each_field([&](const RequestField& field, auto member) {
    if (const auto name = field.in_json(); !name.empty()) out[name] = json_value(request.*member);
  });
  return out;
}

std::string setting_text(const std::string& value) {
  if (value.find_first_of(",:\n") == std::string::npos) return value;
  return json_text(value);
}

std::string json_text(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troupe::wire
