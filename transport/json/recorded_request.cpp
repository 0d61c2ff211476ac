#include "transport/json/recorded_request.h"

#include <algorithm>

namespace troupe::wire {
namespace {

/// Fields whose value in a record is another one than the request's.
bool is_of_its_own(const RequestField& field) {
  const auto& all = kRequestFields;
  return field.name == all.height.name || field.name == all.width.name ||
         field.name == all.steps.name;
}

/// Returns how many of an input there were; most are recorded as whether there was one. Of
/// ControlNets those count that are named by their folder alone: names on the hub are whole.
int count_of(const nlohmann::json& record, const std::string& name) {
  if (!record.contains(name)) return 0;
  const auto& value = record.at(name);
  if (value.is_array())
    return static_cast<int>(std::ranges::count_if(value, [](const auto& one) {
      return one.template get<std::string>().find('/') == std::string::npos;
    }));
  return value.is_boolean() ? value.get<bool>() : value.get<int>();
}

RecordedRequest recorded(const nlohmann::json& record, const std::set<std::string>& brought) {
  for (const std::string_view input : kRecordedInputs) {
    const std::string name(input);
    if (count_of(record, name) > 0 && !brought.contains(name)) throw MissingInput(name);
  }
  nlohmann::json request = nlohmann::json::object();
  const auto copy = [&](const std::string& from, const std::string& to) {
    if (record.contains(from) && !record.at(from).is_null()) request[to] = record.at(from);
  };
  for_each_field([&](const RequestField& field, auto member) {
    using Type = std::remove_cvref_t<decltype(std::declval<ImageRequest>().*member)>;
    const auto name = field.in_json();
    if (name.empty() || is_of_its_own(field)) return;
    // 0 is how they say that none was given, unless a value may be missing.
    constexpr bool says_none = std::is_same_v<Type, Given<Type>>;
    if (says_none && field.default_in_help && record.contains(name) && record.at(name) == 0) return;
    copy(name, std::string(field.name));
  });
  for (const char* name : {"prompt", "model", "height", "width", "steps"})
    copy(name, name);
  const nlohmann::json all = request;
  for (const auto& [name, value] : all.items())
    if (name != "prompt" && name != kRequestFields.negative_prompt.name &&
        (value == "" || value.empty()))
      request.erase(name);
  if (brought.contains("controlnets")) request.erase("controlnets");
  if (const int pictures = record.value("pictures", 1); pictures > 1)
    request["images_per_prompt"] = pictures;
  if (request.value("num_frames", 0) <= 1) request.erase("num_frames");
  if (!record.value("init_image", false)) request.erase("strength");
  if (request.contains("loras") && request.at("loras").is_array())
    for (auto& lora : request["loras"])
      lora = {{"path", lora.value("file", "")},
              {"scale", lora.value("scale", 1.0)},
              {"transformer_2", lora.value("transformer_2", false)}};
  if (request.contains("embeddings") && request.at("embeddings").is_array())
    for (auto& embedding : request["embeddings"])
      embedding = {{"path", embedding.value("file", "")}, {"token", embedding.value("token", "")}};
  return {request, record.value("image", 0), count_of(record, "images"),
          count_of(record, "control_images")};
}

}  // namespace

RecordedRequest recorded_request(const std::vector<std::pair<std::string, std::string>>& texts,
                                 const std::set<std::string>& brought) {
  constexpr int kDeepest = 64;
  nlohmann::json record;
  try {
    for (const auto& [name, text] : texts) {
      if (name != "troupe") continue;
      record = nlohmann::json::parse(text, [](int depth, auto, const auto&) {
        if (depth > kDeepest) throw std::runtime_error("what the file says is nested too deep");
        return true;
      });
    }
    if (!record.is_object())
      throw std::runtime_error("the file does not say how it was made: it is none of ours");
    return recorded(record, brought);
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error("what the file says of its making is malformed");
  }
}

}  // namespace troupe::wire
