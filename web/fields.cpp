#include "web/fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <type_traits>

#include "base/choice.h"
#include "base/format.h"
#include "base/numbers.h"
#include "base/suggest.h"
#include "base/text.h"
#include "models/spec/json_text.h"
#include "models/spec/sampler_alias.h"
#include "models/spec/scheduler_config.h"
#include "web/api_error.h"

namespace troupe::web {
namespace {

constexpr int kEveryCall = kWebui | kImages | kVideos | kJobs;

/// Field that a call has for a part of the submission, where it has not our name.
struct FieldWord {
  int calls;  // a sum of Calls
  wire::JobField field;
  std::string_view name;        // "" = clients of the call cannot say it
  bool is_more = false;         // it says more than that part, which keeps its name in texts
  std::string_view usual = {};  // what holds where the client says nothing
};

constexpr auto kFieldWords = [] {
  using enum wire::JobField;
  return std::to_array<FieldWord>({
      {kEveryCall, prompts, "prompt"},
      {kEveryCall, on_behalf_of, ""},
      {kJobs, progress_interval, "preview_every"},
      {kJobs, progress_count, "preview_every"},
      {kJobs, progress_content, "preview_every"},
      {kImages, progress_interval, "partial_images"},
      {kImages, progress_count, "partial_images"},
      {kImages, progress_content, "partial_images"},
      {kVideos | kWebui, progress_interval, ""},
      {kVideos | kWebui, progress_count, ""},
      {kVideos | kWebui, progress_content, ""},
      {kImages | kVideos | kWebui, want_latents, ""},
      {kImages | kVideos, images_per_prompt, "n"},
      {kImages | kVideos, height, "size", true},
      {kImages | kVideos, width, "size", true},
      {kEdits, init_image, "image"},
      {kEdits, images, "image"},
      {kEdits, mask_image, "mask"},
      {kVideos, init_image, "input_reference"},
      {kVideos, images, "input_reference"},
      {kVideos, num_frames, "seconds", true, "none are given, which is 4: "},
      {kWebui, negative_prompts, "negative_prompt"},
      {kWebui, images_per_prompt, "batch_size"},
      {kWebui, guidance_scale, "cfg_scale"},
      {kWebui, picture_seeds, "seed"},
      {kWebui, sampler, "sampler_name"},
      {kWebui, strength, "denoising_strength"},
      {kWebui, model, "override_settings", true},
      {kWebui, images, ""},
      {kWebui, last_image, ""},
      {kWebui, control_images, "alwayson_scripts", true},
      {kWebui, controlnets, "alwayson_scripts", true},
      {kWebui, control_scale, "alwayson_scripts", true},
      {kWebui, control_from, "alwayson_scripts", true},
      {kWebui, control_until, "alwayson_scripts", true},
      {kWebui, init_latents, ""},
      {kWebui, prompt_embeds, ""},
      {kWebui, priority, ""},
      {kWebui, share, ""},
      {kTxt2Img, init_image, ""},
      {kTxt2Img, mask_image, ""},
      {kImg2Img, init_image, "init_images"},
      {kImg2Img, images, "init_images"},
      {kImg2Img, mask_image, "mask"},
  });
}();

void replace_all(std::string& text, const std::string& word, const std::string& by) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
}

}  // namespace

FieldWords::FieldWords(Call call, const std::set<std::string>& given,
                       const std::map<std::string, std::string>& other_names) {
  for (const auto& line : kFieldWords) {
    if ((line.calls & call) == 0) continue;
    const std::string ours = to_string(line.field), theirs(line.name);
    if (given.contains(ours)) continue;
    Word word{theirs, theirs.empty() ? ours : theirs};
    if (line.is_more)
      word.before += ": " + std::string(given.contains(theirs) ? "" : line.usual) + ours;
    words_[line.field] = word;
  }
  for (const auto& [name, ours] : other_names) {
    const auto field = parse_choice<wire::JobField>(ours);
    if (!field || !given.contains(name) || given.contains(of(*field))) continue;
    words_[*field] = {name, name};
    // The only picture may be the one to start from, and pictures those of ControlNets.
    if (*field != wire::JobField::images) continue;
    for (const auto other : {wire::JobField::init_image, wire::JobField::control_images})
      if (!given.contains(of(other))) words_[other] = {name, name};
  }
}

FieldWords::Word FieldWords::word_of(wire::JobField field) const {
  const auto found = words_.find(field);
  return found != words_.end() ? found->second : Word{to_string(field), to_string(field)};
}

std::string FieldWords::in_words(std::string text) const {
  for (const auto& [field, word] : words_) {
    if (!word.name.empty()) replace_all(text, "`" + to_string(field) + "`", "`" + word.name + "`");
  }
  const std::string first = text.substr(0, text.find_first_of(" :"));
  if (const auto field = parse_choice<wire::JobField>(first))
    text.replace(0, first.size(), word_of(*field).before);
  return text;
}

ApiError FieldWords::in_words(const ApiError& error) const {
  const auto field = parse_choice<wire::JobField>(error.param);
  return {error, in_words(std::string(error.what())), field ? of(*field) : error.param};
}

namespace {

using nlohmann::json;

constexpr std::size_t kMostShown = 80;
constexpr std::size_t kMostValues = 100'000;  // of a body

/// The beginning of a value; `left`: how much more of it may be taken.
json beginning(const json& value, std::size_t& left) {
  left -= std::min<std::size_t>(left, 1);
  if (value.is_string()) {
    const std::string part = value.get_ref<const std::string&>().substr(0, left + 1);
    left -= std::min(left, part.size());
    return part;
  }
  if (!value.is_structured()) return value;
  json part = value.is_array() ? json::array() : json::object();
  for (auto at = value.begin(); at != value.end() && left > 0; ++at) {
    if (value.is_array()) {
      part.push_back(beginning(*at, left));
    } else {
      const std::string name = short_name(at.key());
      left -= std::min(left, name.size());
      part[name] = beginning(*at, left);
    }
  }
  return part;
}

/// Returns the beginning of a given value, for a refusal.
std::string shown(const json& value) {
  std::size_t left = 2 * kMostShown;
  std::string text = json_text(beginning(value, left));
  if (text.size() <= kMostShown) return text;
  text.resize(kMostShown);
  return json_text(json(text + "…"));  // mends a letter that was cut
}

/// Returns whether a client that gives `value` means `other`: 0 and 1 stand for false and true, and
/// a form's texts for what they say.
bool means(const json& value, const json& other, bool form) {
  if (value == other) return true;
  if (form && value.is_string() && !other.is_string()) return value == other.dump();
  const auto number = [](const json& of) {
    return of.is_boolean() ? json(of.get<bool>() ? 1 : 0) : of;
  };
  return number(value) == number(other);
}

/// Fields of the table that HTTP has other words for.
bool is_set_otherwise(const wire::RequestField& field) {
  return field.option == "--preview" || field.name == wire::kRequestFields.prompts.name ||
         field.name == wire::kRequestFields.want_latents.name;
}

/// Names of other tools, and the names of our fields that they mean.
const std::map<std::string, std::string> kMeant = {{"batch_size", "images_per_prompt"},
                                                   {"cfg_scale", "guidance_scale"},
                                                   {"data_parallel_degree", "dp"},
                                                   {"denoising_strength", "strength"},
                                                   {"guidance", "guidance_scale"},
                                                   {"mask", "mask_image"},
                                                   {"num_images_per_prompt", "images_per_prompt"},
                                                   {"pipefusion_parallel_degree", "pp"},
                                                   {"ring_degree", "ring"},
                                                   {"sampler_name", "sampler"},
                                                   {"scheduler", "sampler"},
                                                   {"tensor_parallel_degree", "tp"},
                                                   {"ulysses_degree", "ulysses"},
                                                   {"vae_parallel", "vae"},
                                                   {"vae_parallel_size", "vae"}};

/// A diffusers class name is left to the model's plan, which knows them all.
void check_sampler(const std::string& name, const std::string& sampler) {
  if (sampler.empty() || sampler.ends_with("Scheduler") || spec::is_sampler_name(sampler)) return;
  throw bad_field(name, "is " + shown(sampler) + ", not " + choices_text(spec::sampler_names()));
}

template <class T>
json bound_json(double bound, T) {
  if (!std::isfinite(bound)) return json();
  return std::is_integral_v<T> ? json(static_cast<std::int64_t>(bound)) : json(bound);
}

template <class T>
json default_json(const T& initial, bool none) {
  return none ? json() : json(initial);
}

template <class T>
json default_json(const std::optional<T>&, bool) {
  return {};
}

/// `Type`: of the wire's field, without what may be left out of it.
template <class Type, class Member>
json field_json(const wire::RequestField& field, const Member& initial) {
  json out = {{"name", field.name}, {"help", field.help}, {"option", field.option}};
  out["group"] = field.group == wire::Group::picture ? "picture" : "parallelism";
  if constexpr (std::is_same_v<Type, bool>) {
    out["type"] = "boolean";
    out["default"] = initial;
  } else if constexpr (std::is_arithmetic_v<Type>) {
    out["type"] = std::is_integral_v<Type> ? "integer" : "number";
    out["default"] = default_json(initial, field.default_in_help);
    out["least"] = bound_json(field.typed.least, Type());
    out["most"] = bound_json(field.typed.most, Type());
    out["above"] = field.typed.above;
  } else if constexpr (Choice<Type>) {
    out["type"] = "string";
    out["choices"] = choice_words<Type>();
    out["default"] = initial.empty() ? json() : json(initial);
  } else if constexpr (std::is_same_v<Type, std::string>) {
    out["type"] = "string";
    out["default"] = default_json(initial, initial == "");
    if (field.name == wire::kRequestFields.sampler.name) {
      out["choices"] = spec::sampler_names();
    }
  } else if constexpr (std::is_same_v<Type, std::vector<wire::Lora>> ||
                       std::is_same_v<Type, std::vector<wire::Embedding>>) {
    out["type"] = "list";
    out["items"] = std::is_same_v<Type, std::vector<wire::Lora>> ? "lora" : "embedding";
    out["default"] = json::array();
  } else {
    using Item = typename Type::value_type;
    out["type"] = "list";
    out["items"] = std::is_integral_v<Item>         ? "integer"
                   : std::is_floating_point_v<Item> ? "number"
                                                    : "string";
    out["default"] = json::array();
  }
  return out;
}

}  // namespace

json parse_body(const std::string& body) {
  constexpr std::size_t kMostSaid = 300;
  try {
    return spec::parse_json(body, "the body", kMostValues);
  } catch (const std::runtime_error& error) {
    std::string what = error.what();
    constexpr std::string_view kMark = "[parse_json] ";
    if (what.starts_with(kMark)) what.erase(0, kMark.size());
    // It may quote a text of megabytes.
    if (what.size() > kMostSaid) what = what.substr(0, kMostSaid) + "…";
    throw ApiError(400, ErrorCode::bad_request, what);
  }
}

Fields::Fields(json body, std::map<std::string, std::string> aliases, bool form)
    : body_(std::move(body)), aliases_(std::move(aliases)), form_(form) {
  if (!body_.is_object())
    throw ApiError(400, ErrorCode::bad_request, "the body is not a JSON object: {\"prompt\": …}");
}

Fields Fields::parse(const std::string& body, std::map<std::string, std::string> aliases) {
  return Fields(parse_body(body), std::move(aliases));
}

const json* Fields::take(const std::string& name, std::string& asked) {
  const json* found = nullptr;
  const auto look = [&](const std::string& word) {
    known_.insert(word);
    const auto at = body_.find(word);
    if (at == body_.end()) return;
    taken_.insert(word);
    if (at->is_null() || (form_ && *at == "")) return;
    if (found && *found != *at)
      throw bad_field(word, "says another thing than " + asked + ", which means the same");
    found = &*at;
    asked = word;
  };
  asked = name;
  look(name);
  for (const auto& [alias, ours] : aliases_)
    if (ours == name) look(alias);
  return found;
}

std::optional<std::string> Fields::text(const std::string& name) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  if (!value->is_string()) throw bad_field(asked, "is " + shown(*value) + ", not a text");
  return value->get<std::string>();
}

std::optional<std::int64_t> Fields::whole(const std::string& name, std::int64_t least,
                                          std::int64_t most) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  std::optional<std::int64_t> number;
  if (value->is_number_unsigned()) {
    if (value->get<std::uint64_t>() <= std::uint64_t{INT64_MAX})
      number = value->get<std::int64_t>();
  } else if (value->is_number_integer()) {
    number = value->get<std::int64_t>();
  } else if (value->is_number_float() && std::abs(value->get<double>()) < 1e15 &&
             std::trunc(value->get<double>()) == value->get<double>()) {
    number = static_cast<std::int64_t>(value->get<double>());
  } else if (form_ && value->is_string()) {
    number = parse_number<std::int64_t>(value->get<std::string>());
  }
  if (!number || *number < least || *number > most) {
    throw bad_field(
        asked, fmt::format("is {}, not a whole number from {} to {}", shown(*value), least, most));
  }
  return number;
}

std::optional<std::uint64_t> Fields::natural(const std::string& name) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  std::optional<std::uint64_t> number;
  if (value->is_number_unsigned()) number = value->get<std::uint64_t>();
  if (form_ && value->is_string()) number = parse_number<std::uint64_t>(value->get<std::string>());
  if (!number)
    throw bad_field(
        asked, fmt::format("is {}, not a whole number from 0 to {}", shown(*value), UINT64_MAX));
  return number;
}

std::optional<double> Fields::number(const std::string& name, const wire::Bounds& bounds) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  std::optional<double> number;
  if (value->is_number()) number = value->get<double>();
  if (form_ && value->is_string()) number = parse_number<double>(value->get<std::string>());
  if (!number || !std::isfinite(*number) || *number < bounds.least || *number > bounds.most ||
      (bounds.above && *number == bounds.least)) {
    std::string what = "is " + shown(*value) + ", not a number";
    if (std::isfinite(bounds.least))
      what += (bounds.above ? " above " : " from ") + number_text(bounds.least);
    if (std::isfinite(bounds.most)) what += " to " + number_text(bounds.most);
    throw bad_field(asked, what);
  }
  return number;
}

std::optional<bool> Fields::flag(const std::string& name) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  if (form_ && (*value == "true" || *value == "false")) return *value == "true";
  throw bad_field(asked, "is " + shown(*value) + ", not true or false");
}

std::optional<std::string> Fields::choice(const std::string& name,
                                          const std::vector<std::string>& words) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  for (const auto& word : words)
    if (*value == word) return word;
  throw bad_field(asked, "is " + shown(*value) + ", not " + choices_text(words));
}

std::optional<std::vector<std::string>> Fields::texts(const std::string& name) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  if (value->is_string()) return std::vector{value->get<std::string>()};
  const auto wrong = [&] {
    return bad_field(asked, "is " + shown(*value) + ", neither a text nor a list of texts");
  };
  if (!value->is_array()) throw wrong();
  std::vector<std::string> list;
  for (const json& one : *value) {
    if (!one.is_string()) throw wrong();
    list.push_back(one);
  }
  if (list.empty()) throw bad_field(asked, "is an empty list");
  return list;
}

template <class T>
std::optional<std::vector<T>> Fields::numbers(const std::string& name, const wire::Bounds& bounds,
                                              bool one_for_all) {
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return std::nullopt;
  const double least =
      std::max(bounds.least, static_cast<double>(std::numeric_limits<T>::lowest()));
  const double most = std::min(bounds.most, static_cast<double>(std::numeric_limits<T>::max()));
  const auto wrong = [&] {
    return bad_field(asked, fmt::format("is {}, not a list of {} from {} to {}", shown(*value),
                                        std::is_integral_v<T> ? "whole numbers" : "numbers",
                                        number_text(least), number_text(most)));
  };
  std::vector<T> list;
  const auto add = [&](std::optional<T> number) {
    const auto size = static_cast<double>(number.value_or(T{}));
    if (!number || !(size >= least && size <= most)) throw wrong();
    list.push_back(*number);
  };
  if (form_ && value->is_string()) {
    const auto text = value->get<std::string>();
    std::istringstream parts(text.empty() ? text : text + ",");  // or an empty end would be none
    for (std::string part; std::getline(parts, part, ',');)
      add(parse_number<T>(part.substr(std::min(part.find_first_not_of(' '), part.size()))));
    return list;
  }
  const json list_of_one = json::array({*value});
  const bool is_one_for_all = one_for_all && value->is_number();
  if (!value->is_array() && !is_one_for_all) throw wrong();
  for (const json& one : is_one_for_all ? list_of_one : *value) {
    const bool is_one = std::is_integral_v<T> ? one.is_number_integer() : one.is_number();
    // A number of another kind, or beyond the type, must not be cut down to one of it.
    if (!is_one || one.get<double>() < least || one.get<double>() > most) throw wrong();
    add(one.get<T>());
  }
  return list;
}

const json* Fields::any(const std::string& name) {
  std::string asked;
  return take(name, asked);
}

bool Fields::has(const std::string& name) const {
  const auto at = body_.find(name);
  return at != body_.end() && !at->is_null();
}

FieldWords words_of(const json& body, Call call, const std::map<std::string, std::string>& aliases,
                    bool form) {
  std::set<std::string> given;
  for (const auto& [name, value] : body.items()) {
    if (!value.is_null() && !(form && value == "")) given.insert(name);
  }
  return {call, given, aliases};
}

FieldWords Fields::words(Call call) const {
  return words_of(body_, call, aliases_, form_);
}

void Fields::settle(Call call) {
  for (const CallField& field : kCallFields) {
    const std::string name(field.name);
    if ((field.calls & call) == 0 || taken_.contains(name)) continue;
    std::string asked;
    const json* value = take(name, asked);
    if (!value || field.treatment == Treatment::harmless) continue;
    if (field.treatment == Treatment::taken)
      throw std::logic_error("[fields] nobody reads " + name);
    const json passing = json::parse(field.passing);
    if (std::ranges::none_of(passing, [&](const json& each) { return means(*value, each, form_); }))
      throw bad_field(
          name, "is " + shown(*value) + ", which is not done here: " + std::string(field.says));
  }
}

template <class File>
void Fields::read_files(const std::string& name, std::vector<File>& files) {
  constexpr bool kScaled = requires(File file) {
    file.scale;
  };
  std::string asked;
  const json* value = take(name, asked);
  if (!value) return;
  const auto wrong = [&] {
    return bad_field(asked, "is " + shown(*value) + ", not a list of {\"path\": FILE, " +
                                (kScaled ? "\"scale\": NUMBER, \"transformer_2\": true or false}"
                                         : "\"token\": WORD}"));
  };
  const auto read = [&](const json& one) {
    File file;
    if (one.is_string()) {
      file.path = one;
    } else if (one.is_object() && one.contains("path") && one.at("path").is_string()) {
      file.path = one.at("path");
      for (const auto& [key, item] : one.items()) {
        if (key == "path") continue;
        if constexpr (kScaled) {
          if (key == "transformer_2" && item.is_boolean())
            file.of_second = item;
          else if (key == "scale" && item.is_number())
            file.scale = item;
          else
            throw wrong();
        } else {
          if (key != "token" || !(item.is_string() || item.is_null())) throw wrong();
          if (item.is_string()) file.token = item;
        }
      }
    } else {
      throw wrong();
    }
    files.push_back(std::move(file));
  };
  files.clear();
  if (!value->is_array()) return read(*value);
  for (const json& one : *value)
    read(one);
}

/// `Type`: of the wire's field, without what may be left out of it. Of choices, `member` is the
/// name.
template <class Type, class Member>
void Fields::read_field(const wire::RequestField& field, Member& member) {
  const std::string name(field.name);
  const auto set = [&](auto value) {
    if (value) member = static_cast<Member>(std::move(*value));
  };
  if constexpr (std::is_same_v<Type, bool>) {
    set(flag(name));
  } else if constexpr (std::is_same_v<Type, std::uint64_t>) {
    set(natural(name));
  } else if constexpr (std::is_integral_v<Type>) {
    set(whole(name, static_cast<std::int64_t>(std::max(field.typed.least, -2147483648.0)),
              static_cast<std::int64_t>(std::min(field.typed.most, 2147483647.0))));
  } else if constexpr (std::is_floating_point_v<Type>) {
    set(number(name, std::isfinite(field.typed.most) ? field.typed : field.taken));
  } else if constexpr (Choice<Type>) {
    set(choice(name, choice_words<Type>()));
  } else if constexpr (std::is_same_v<Type, std::string>) {
    auto value = text(name);
    if (value && name == wire::kRequestFields.sampler.name) check_sampler(name, *value);
    set(std::move(value));
  } else if constexpr (std::is_same_v<Type, std::vector<wire::Lora>> ||
                       std::is_same_v<Type, std::vector<wire::Embedding>>) {
    read_files(name, member);
  } else if constexpr (std::is_same_v<Type, std::vector<std::string>>) {
    set(texts(name));
  } else {
    set(numbers<typename Type::value_type>(name, field.typed, field.one_for_all));
  }
}

void Fields::read_request(ImageRequest& request) {
  const std::string method = request.method;
  request.method.clear();
#define REQUEST_FIELD(type, name, initial, ...)                                \
  if (const auto& field = wire::kRequestFields.name; !is_set_otherwise(field)) \
    read_field<wire::Given<decltype(wire::ImageRequest::name)>>(field, request.name);
#include "transport/wire/request_fields.def"
  if (request.method.empty())
    request.method = request.num_pipeline_patch > 1 ? to_string(Method::pipefusion) : method;
}

void Fields::read_degrees(Parallelism& degrees) {
  const auto read = [&](const wire::DegreeField& field, int& degree) {
    degree = static_cast<int>(whole(std::string(field.name), 1, field.most).value_or(degree));
  };
#define DEGREE_FIELD(name, option, most, help) read(wire::kDegreeFields.name, degrees.name);
#include "transport/wire/degree_fields.def"
  if (const auto stages = numbers<int>("stages", {1, wire::kMaxActors})) degrees.stages = *stages;
  degrees.automatic = choice("parallel", {"auto"}).has_value();
}

void Fields::refuse_rest() const {
  for (const auto& [name, value] : body_.items()) {
    if (taken_.contains(name)) continue;
    const auto meant = kMeant.find(name);
    const bool is_known = meant != kMeant.end() && known_.contains(meant->second);
    throw ApiError(400, HttpCode::unknown_field,
                   shown(name) + " is no field of this request" +
                       (is_known ? "; did you mean " + meant->second + "?"
                                 : did_you_mean(name, {known_.begin(), known_.end()})),
                   short_name(name));
  }
}

json options_json() {
  const ImageRequest initial;
  json fields = json::array();
#define REQUEST_FIELD(type, name, initial_value, ...)                          \
  if (const auto& field = wire::kRequestFields.name; !is_set_otherwise(field)) \
    fields.push_back(                                                          \
        field_json<wire::Given<decltype(wire::ImageRequest::name)>>(field, initial.name));
#include "transport/wire/request_fields.def"
  fields.push_back({{"name", "stages"},
                    {"type", "list"},
                    {"items", "integer"},
                    {"default", json::array()},
                    {"option", wire::kJobOptions.stages},
                    {"group", "parallelism"},
                    {"help",
                     "Blocks of each pipeline stage, as many numbers as pp says; default: "
                     "split by cost"}});
  json degrees = json::array();
  wire::for_each_degree([&](const wire::DegreeField& field, auto) {
    degrees.push_back({{"name", field.name},
                       {"type", "integer"},
                       {"default", 1},
                       {"least", 1},
                       {"most", field.most},
                       {"option", field.option},
                       {"help", field.help}});
  });
  return {{"fields", fields}, {"degrees", degrees}, {"samplers", spec::sampler_names()}};
}

}  // namespace troupe::web
