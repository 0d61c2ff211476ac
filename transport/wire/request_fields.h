#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "transport/wire/job.h"
#include "transport/wire/job_field.h"
#include "transport/wire/request_limits.h"

namespace troupe::wire {

/// Group of options in which `--help` lists an option.
enum class Group { picture, parallelism };

/// Rule for batches: whether jobs that differ in a field may compute as one batch.
enum class Batched { alike, with_others };

/// Bounds of a number.
struct Bounds {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;  // `least` itself is too little
};

/// Description of a request's field beside its type, for the rooms: a line of request_fields.def.
struct RequestField {
  std::string_view name = {};  // of the member, here and in the C++ API
  JobField field = JobField::none;
  std::string_view option = {};  // on the command line; "" = it has none
  std::string_view value = {};   // what stands for its value in the help
  std::string_view help = {};    // "" = the command line adds the option by hand
  Group group = Group::picture;
  Bounds typed = {};             // bounds of a value that is typed at the command line
  Bounds taken = {};             // bounds of a value that the controller takes
  bool default_in_help = false;  // the help's text says what holds where none is given
  std::string_view json = "=";   // name in reports; "=" = the member's name, "" = it is not in them
  Batched batched = Batched::alike;
  bool one_for_all = false;  // a list's only value is everybody's; HTTP takes it without brackets

  std::string in_json() const { return std::string(json == "=" ? name : json); }
};

/// Type of a field's value where the field is given; of an optional, the type in it.
template <class T>
struct GivenType {
  using Type = T;
};
template <class T>
struct GivenType<std::optional<T>> {
  using Type = T;
};
template <class T>
using Given = typename GivenType<T>::Type;

/// The lines of request_fields.def, by the members' names.
struct RequestFields {
#define REQUEST_FIELD(type, member, initial, ...) \
  RequestField member = RequestField{.name = #member, .field = JobField::member, __VA_ARGS__};
#include "transport/wire/request_fields.def"
};
inline constexpr RequestFields kRequestFields;

/// Calls `visit(field, member)` with every field that a client sets: its line, and the pointer to
/// ImageRequest's member.
template <class Visit>
void for_each_field(Visit&& visit) {
#define REQUEST_FIELD(type, member, initial, ...) \
  visit(kRequestFields.member, &ImageRequest::member);
#include "transport/wire/request_fields.def"
}

/// A line of degree_fields.def.
struct DegreeField {
  std::string_view name;  // of the member
  std::string_view option;
  int most;
  std::string_view help;
};

struct DegreeFields {
#define DEGREE_FIELD(member, option, most, help) DegreeField member = {#member, option, most, help};
#include "transport/wire/degree_fields.def"
};
inline constexpr DegreeFields kDegreeFields;

/// Calls `visit(field, member)` with every degree: its line, and the pointer to Parallelism's
/// member.
template <class Visit>
void for_each_degree(Visit&& visit) {
#define DEGREE_FIELD(member, option, most, help) visit(kDegreeFields.member, &Parallelism::member);
#include "transport/wire/degree_fields.def"
}

/// Options for the rest of a job: of the spec, and for what a picture begins with.
struct JobOptions {
  std::string_view model = "--model";
  std::string_view prompt = "--prompt";
  std::string_view prompt_embeds = "--prompt-embeds";
  std::string_view init_latents = "--init-latents";
  std::string_view init_image = "--init-image";
  std::string_view mask_image = "--mask";
  std::string_view images = "--image";
  std::string_view last_image = "--last-image";
  std::string_view control_images = "--control-image";
  std::string_view second_lora = "--lora-2";
  std::string_view automatic = "--parallel";  // auto
  std::string_view stages = "--stages";
  std::string_view priority = "--priority";
  std::string_view share = "--share";
  std::string_view elastic = "--elastic";
  std::string_view may_batch = "--may-batch";
};
inline constexpr JobOptions kJobOptions;

}  // namespace troupe::wire
