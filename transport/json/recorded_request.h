#pragma once
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "transport/wire/request_fields.h"

namespace troupe::wire {

/// Inputs that a record names, but does not hold.
inline constexpr std::array<std::string_view, 8> kRecordedInputs = {
    "init_image",     "mask_image",  "images",       "last_image",
    "control_images", "controlnets", "init_latents", "prompt_embeds"};

/// Thrown for an input with which a picture was made, and which its record names but does not hold.
struct MissingInput : std::runtime_error {
  explicit MissingInput(const std::string& field)
      : std::runtime_error("the picture was made with " + field +
                           ", which it does not hold: give it, too"),
        field(field) {}
  std::string field;  // one of kRecordedInputs
};

/// The request that makes a picture or clip again.
struct RecordedRequest {
  nlohmann::json fields;   // by their names, `prompt` and `model`, without what says nothing
  int image = 0;           // which of the pictures that it makes is that one
  int images = 0;          // how many pictures it had beside the text
  int control_images = 0;  // and how many control pictures
};

/// The request that made a picture or clip, of the texts of its file, the one among them that
/// request_json wrote.
/// `brought`: inputs that the caller has. Throws MissingInput for the first that is not,
/// std::runtime_error for a picture of others and for a malformed record.
RecordedRequest recorded_request(const std::vector<std::pair<std::string, std::string>>& texts,
                                 const std::set<std::string>& brought);

template <class T>
bool is_recorded_as(const nlohmann::json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    if (value.is_number_unsigned()) return std::in_range<T>(value.get<std::uint64_t>());
    return value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  } else if constexpr (std::is_floating_point_v<T>) {
    return value.is_number();
  } else {
    return value.is_string();
  }
}

/// Throws std::runtime_error naming the field where the value is of another kind.
template <class T>
void read_recorded_field(const nlohmann::json& request, const std::string& name, T& member) {
  if (!request.contains(name)) return;
  const auto& value = request.at(name);
  const auto check = [&](bool fits) {
    if (!fits) throw std::runtime_error(name + ": is " + value.dump() + ", which it cannot be");
  };
  if constexpr (!std::is_same_v<T, Given<T>>) {
    read_recorded_field(request, name, member.emplace());
  } else if constexpr (requires { member.emplace_back().path; }) {
    check(value.is_array());
    member.clear();
    for (const auto& file : value) {
      check(file.is_object() && is_recorded_as<std::string>(file.at("path")));
      auto& read = member.emplace_back();
      file.at("path").get_to(read.path);
      if constexpr (requires { read.scale; }) {
        check(file.at("scale").is_number());
        file.at("scale").get_to(read.scale);
        check(file.at("transformer_2").is_boolean());
        file.at("transformer_2").get_to(read.of_second);
      } else {
        check(file.at("token").is_string());
        file.at("token").get_to(read.token);
      }
    }
  } else if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string>) {
    check(value.is_array());
    for (const auto& one : value)
      check(is_recorded_as<typename T::value_type>(one));
    value.get_to(member);
  } else {
    check(is_recorded_as<T>(value));
    value.get_to(member);
  }
}

/// Sets the fields of a troupe::ImageRequest that `request`, of a RecordedRequest, has. Their
/// bounds are checked where it is submitted.
template <class ImageRequest>
void read_recorded(const nlohmann::json& request, ImageRequest& into) {
#define REQUEST_FIELD(type, member, initial, ...) \
  read_recorded_field(request, #member, into.member);
#include "transport/wire/request_fields.def"
  std::string prompt;
  read_recorded_field(request, "prompt", prompt);
  into.prompts = {prompt};
}

}  // namespace troupe::wire
