#pragma once
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/choice.h"

namespace troupe {

namespace wire {
/// Part of a submission that a refusal is about: a field of its request, a degree, or what else the
/// submission says.
enum class JobField : std::uint8_t {
  none,  // more than one, or nothing of the submission
#define REQUEST_FIELD(type, name, ...) name,
#include "transport/wire/request_fields.def"
#define DEGREE_FIELD(name, ...) name,
#include "transport/wire/degree_fields.def"
  stages,
  parallel,
  init_latents,
  init_image,
  mask_image,
  images,
  last_image,
  control_images,
  prompt_embeds,
  model,
  priority,
  share,
  on_behalf_of,
};
}  // namespace wire

template <>
inline constexpr auto kNamesOf<wire::JobField> = std::to_array<std::string_view>({
    "",
#define REQUEST_FIELD(type, name, ...) #name,
#include "transport/wire/request_fields.def"
#define DEGREE_FIELD(name, ...) #name,
#include "transport/wire/degree_fields.def"
    "stages",
    "parallel",
    "init_latents",
    "init_image",
    "mask_image",
    "images",
    "last_image",
    "control_images",
    "prompt_embeds",
    "model",
    "priority",
    "share",
    "on_behalf_of",
});

namespace wire {

using troupe::to_string;

/// A submission that cannot be: one line that names the field, its value and the reason.
struct BadField : std::invalid_argument {
  BadField(JobField field, const std::string& what) : std::invalid_argument(what), field(field) {}
  JobField field;
};

/// The field that an exception is about.
inline JobField field_of(const std::exception& error) {
  const auto* bad = dynamic_cast<const BadField*>(&error);
  return bad ? bad->field : JobField::none;
}

/// Does `work`: what it throws as an invalid argument is the fault of that field.
template <class Work>
auto about(JobField field, Work&& work) {
  try {
    return work();
  } catch (const std::invalid_argument& error) {
    throw BadField(field, error.what());
  }
}

}  // namespace wire
}  // namespace troupe
