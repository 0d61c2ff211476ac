#include "controller/plan/request_rules.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "models/spec/prompt_embeds.h"
#include "models/spec/transformer_spec.h"
#include "transport/wire/request_limits.h"
#include "transport/wire/request_rules.h"

namespace troupe::plan {

void check(const wire::ImageRequest& request, const wire::Parallelism& degrees) {
  try {
    wire::check_request(request);
    wire::check_degrees(request, degrees);
  } catch (const wire::BadField& error) {
    refuse(error.field, error.what());
  }
}

namespace {

using Shape = std::vector<std::int64_t>;

const wire::NamedShape* find_tensor(const wire::ImageRequest& request, const std::string& name) {
  const auto found = std::ranges::find(request.prompt_embeds, name, &wire::NamedShape::name);
  return found == request.prompt_embeds.end() ? nullptr : &*found;
}

std::string negative_of(const spec::PromptTensor& tensor) {
  return std::string(spec::kNegativeTensor) + tensor.name;
}

void check_names(const wire::ImageRequest& request, const spec::ModelSpec& model,
                 const std::vector<spec::PromptTensor>& tensors) {
  std::vector<std::string> taken;
  for (const auto& tensor : tensors)
    taken.push_back(tensor.name);
  if (model.transformer.guidance == spec::GuidanceKind::branches) {
    for (const auto& tensor : tensors)
      taken.push_back(negative_of(tensor));
  }
  std::string names;
  for (const auto& name : taken)
    names += (names.empty() ? "" : ", ") + name;
  for (std::size_t i = 0; i < request.prompt_embeds.size(); ++i) {
    const auto& name = request.prompt_embeds[i].name;
    if (std::ranges::find(taken, name) == taken.end())
      refuse(JobField::prompt_embeds, "`prompt_embeds` have a tensor \"" + name +
                                          "\": " + model.pipeline_class + " takes " + names);
    if (find_tensor(request, name) != &request.prompt_embeds[i])
      refuse(JobField::prompt_embeds, "`prompt_embeds` have two tensors \"" + name + "\"");
  }
}

/// Checks a tensor's shape and returns its number of tokens; 0 for a tensor that has none.
std::int64_t check_shape(const std::string& name, const Shape& shape,
                         const spec::PromptTensor& tensor, std::int64_t prompts) {
  using Kind = spec::PromptTensor::Kind;
  const bool has_tokens = tensor.kind != Kind::pooled;
  const bool has_width = tensor.kind != Kind::mask;
  const std::string tokens = tensor.tokens > 0 ? std::to_string(tensor.tokens) : "tokens";
  const bool has_layers = tensor.layers > 0;
  const std::string wanted = fmt::format("[{}{}{}{}]", prompts, has_tokens ? ", " + tokens : "",
                                         has_layers ? fmt::format(", {}", tensor.layers) : "",
                                         has_width ? fmt::format(", {}", tensor.width) : "");
  const std::size_t rank = 1 + (has_tokens ? 1 : 0) + (has_layers ? 1 : 0) + (has_width ? 1 : 0);
  const bool fits = shape.size() == rank && shape[0] == prompts &&
                    (!has_layers || shape[2] == tensor.layers) &&
                    (!has_width || shape.back() == tensor.width) &&
                    (!has_tokens || (tensor.tokens > 0 ? shape[1] == tensor.tokens : shape[1] > 0));
  if (!fits) {
    std::string text;
    for (const auto extent : shape)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
    refuse(JobField::prompt_embeds,
           name + " has the shape [" + text + "]: this model takes " + wanted);
  }
  return has_tokens ? shape[1] : 0;
}

/// Refuses fields that go with text alone.
void check_no_text(const wire::ImageRequest& request, bool encodes_negative) {
  if (encodes_negative) return;
  const auto is_text = [](const std::string& text) { return !text.empty(); };
  if (is_text(request.negative_prompt.value_or("")) ||
      std::ranges::any_of(request.negative_prompts, is_text))
    refuse(JobField::negative_prompt,
           "`negative_prompt` does not go with `prompt_embeds` that have the negative text, or "
           "need none");
  if (request.clean_caption)
    refuse(JobField::clean_caption,
           "`clean_caption` is on, but with `prompt_embeds` there is no text");
}

void check_bytes(const wire::ImageRequest& request) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : request.prompt_embeds) {
    std::uint64_t own = sizeof(float);
    for (const auto extent : tensor.shape)
      own *= static_cast<std::uint64_t>(extent);
    bytes += own;
  }
  if (request.prompt_embeds_bytes != bytes) {
    refuse(JobField::prompt_embeds,
           fmt::format("`prompt_embeds` have {} bytes, but their shapes in float32 need {}",
                       request.prompt_embeds_bytes, bytes));
  }
}

}  // namespace

void set_prompt_embeds(wire::ImageRequest& request, const spec::ModelSpec& model,
                       bool encodes_negative) {
  const auto tensors = spec::prompt_tensors(model);
  check_names(request, model, tensors);
  check_no_text(request, encodes_negative);
  if (request.clean_caption && !model.pixart_customs)
    refuse(JobField::clean_caption,
           "`clean_caption` is on, but " + model.pipeline_class + " takes prompts as they are");
  const bool any_negative = std::ranges::any_of(request.prompt_embeds, [](const auto& tensor) {
    return tensor.name.starts_with(spec::kNegativeTensor);
  });
  const auto prompts = static_cast<std::int64_t>(request.prompts.size());
  std::vector<std::optional<std::int64_t>> tokens;  // by output
  std::int64_t all_tokens = 0;
  for (const auto& tensor : tensors) {
    const auto* own = find_tensor(request, tensor.name);
    if (!own) refuse(JobField::prompt_embeds, tensor.name + " is missing from `prompt_embeds`");
    const auto count = check_shape(tensor.name, own->shape, tensor, prompts);
    if (const auto* negative = find_tensor(request, negative_of(tensor))) {
      if (negative->shape != own->shape)
        check_shape(negative->name, negative->shape, tensor, prompts);
      if (negative->shape != own->shape)
        refuse(JobField::prompt_embeds,
               negative->name + " has another number of tokens than " + tensor.name);
    } else if (any_negative) {
      refuse(JobField::prompt_embeds,
             negative_of(tensor) +
                 " is missing from `prompt_embeds`: these have some of the "
                 "negative text, so they need all of it");
    }
    if (count == 0) continue;
    tokens.resize(std::max(tokens.size(), tensor.output + 1));
    auto& known = tokens[tensor.output];
    if (known && *known != count) {
      refuse(JobField::prompt_embeds, fmt::format("{} is of {}, but what it masks of {}",
                                                  tensor.name, counted(count, "token"), *known));
    }
    if (!known) all_tokens += count;
    known = count;
  }
  const auto length = all_tokens - model.transformer.more_text_tokens;
  if (length < 1 || length > wire::kMaxTextTokens) {
    refuse(JobField::prompt_embeds,
           fmt::format("`prompt_embeds` are of {}: this model takes {} to {}",
                       counted(all_tokens, "token"), model.transformer.more_text_tokens + 1,
                       model.transformer.more_text_tokens + wire::kMaxTextTokens));
  }
  const auto fixed = model.transformer.fixed_text_tokens;
  if (encodes_negative && fixed > 0 && length != fixed) {
    refuse(JobField::prompt_embeds,
           fmt::format(
               "`prompt_embeds` are of {}, but the negative text, which is to be encoded, of {}",
               counted(all_tokens, "token"), fixed));
  }
  if (request.max_sequence_length != 0 && request.max_sequence_length != length) {
    refuse(JobField::max_sequence_length,
           fmt::format("`max_sequence_length` is {}, but `prompt_embeds` are of {}",
                       request.max_sequence_length, counted(all_tokens, "token")));
  }
  request.max_sequence_length = static_cast<std::int32_t>(length);
  check_bytes(request);
}

}  // namespace troupe::plan
