#include "client/cli/field_options.h"

#include <map>
#include <set>
#include <type_traits>

#include "base/suggest.h"
#include "client/cli/options.h"
#include "models/spec/sampler_alias.h"
#include "models/spec/scheduler_config.h"

namespace troupe::cli {
namespace {

const std::map<std::string, std::string> kComputeTypes = {
    {"float32", "float32"}, {"fp32", "float32"},    {"bfloat16", "bfloat16"},
    {"bf16", "bfloat16"},   {"float16", "float16"}, {"fp16", "float16"}};

/// Short names become long ones.
Check compute_type_check() {
  static const auto kLong = choice_words<ComputeType>();
  return Check(
      [](std::string& text) -> std::string {
        const auto found = kComputeTypes.find(text);
        if (found == kComputeTypes.end()) return not_one_of(text, kLong, {"fp32", "bf16", "fp16"});
        text = found->second;
        return "";
      },
      kLong);
}

Check weight_check() {
  static const auto kSmall = choice_words<WeightChoice>();
  return Check(
      [](std::string& text) -> std::string {
        if (!kComputeTypes.contains(text)) return one_of(kSmall)(text);
        return "\"" + text + "\" is not int8 or fp8; left out, weights are kept as --dtype says";
      },
      kSmall);
}

/// Other tools' names become ours. A diffusers class name is left to the model's plan, which knows
/// them all.
Check sampler_check() {
  return Check(
      [](std::string& text) -> std::string {
        if (text.empty() || text.ends_with("Scheduler")) return "";
        text = spec::sampler_of_alias(text);
        if (spec::is_sampler_name(text)) return "";
        return one_of(spec::sampler_names())(text);
      },
      spec::sampler_names());
}

Check bounds_check(const wire::Bounds& typed, bool whole_number) {
  if (whole_number)
    return whole(static_cast<std::int64_t>(typed.least), static_cast<std::int64_t>(typed.most));
  return typed.above ? number_above(typed.least, typed.most) : number(typed.least, typed.most);
}

/// `Type`: of the wire's field. Of choices, `member` is the name.
template <class Type, class Member>
void add_field_option(Options& app, const wire::RequestField& field, Member& member,
                      const std::string& group) {
  static const std::map<std::string_view, const char*> kShort = {{"--height", "-H,"},
                                                                 {"--width", "-W,"}};
  static const std::set<std::string_view> kUsual = {"--n",     "--height",   "--width",
                                                    "--steps", "--guidance", "--sampler"};
  const auto shorter = kShort.find(field.option);
  const std::string name =
      (shorter == kShort.end() ? "" : shorter->second) + std::string(field.option);
  const std::string help(field.help);
  const std::string heading = kUsual.contains(field.option) ? kUsualOptions : group;
  using Value = wire::Given<Type>;
  if constexpr (std::is_same_v<Type, bool>) {
    app.add_flag(name, member, help)->group(heading);
  } else if constexpr (std::is_same_v<Type, std::vector<std::int32_t>> ||
                       std::is_same_v<Type, std::vector<double>>) {
    constexpr bool kWhole = !std::is_same_v<Type, std::vector<double>>;
    app.add_list_option(name, member, help, bounds_check(field.typed, kWhole))
        ->type_name(std::string(field.value))
        ->group(heading);
  } else if constexpr (!std::is_same_v<Type, std::vector<wire::Lora>> &&
                       !std::is_same_v<Type, std::vector<wire::Embedding>>) {
    auto* option =
        app.add_option(name, member, help)->type_name(std::string(field.value))->group(heading);
    if constexpr (std::is_same_v<Type, ComputeType>) {
      option->transform(compute_type_check());
    } else if constexpr (std::is_same_v<Type, WeightChoice>) {
      option->check(weight_check());
    } else if constexpr (Choice<Type>) {
      option->check(one_of(choice_words<Type>()));
    } else if constexpr (std::is_arithmetic_v<Value>) {
      option->check(bounds_check(field.typed, std::is_integral_v<Value>));
    }
    if constexpr (std::is_arithmetic_v<Type> || Choice<Type>)
      if (!field.default_in_help) option->capture_default_str();
    if (field.option == "--sampler") option->transform(sampler_check());
  }
}

}  // namespace

void add_field_options(Options& app, ImageRequest& request, wire::Group group,
                       const std::string& heading) {
#define REQUEST_FIELD(type, name, initial, ...)                                                   \
  if (const auto& field = wire::kRequestFields.name; !field.help.empty() && field.group == group) \
    add_field_option<decltype(wire::ImageRequest::name)>(app, field, request.name, heading);
#include "transport/wire/request_fields.def"
}

}  // namespace troupe::cli
