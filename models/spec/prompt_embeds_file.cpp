#include "models/spec/prompt_embeds_file.h"

#include <stdexcept>

#include "base/format.h"
#include "models/spec/tensor_values.h"

namespace troupe::spec {
namespace {

constexpr std::uint64_t kMostHeader = std::uint64_t{1} << 20;
constexpr const char* kPromptEmbeds = "prompt_embeds";

}  // namespace

PromptEmbedsFile parse_prompt_embeds(std::string_view bytes, const std::string& name,
                                     std::size_t most_values, std::size_t most_prompts) {
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error("[prompt embeds] " + name + ": " + why);
  };
  const auto index = WeightIndex::of_bytes(bytes, name, kMostHeader);
  const auto* prompts = index.find(kPromptEmbeds);
  if (!prompts || prompts->shape.empty()) refuse("has no tensor \"prompt_embeds\"");
  const auto rows = static_cast<std::uint64_t>(prompts->shape.front());
  if (rows < 1 || rows > most_prompts)
    refuse(fmt::format("is of {} prompts, 1 to {} are taken", rows, most_prompts));
  std::uint64_t values = 0;
  for (const auto& entry : index.tensors())
    values += entry.bytes() / dtype_bytes(entry.dtype);
  if (values > most_values)
    refuse(fmt::format("has {} values, at most {} are taken", values, most_values));

  PromptEmbedsFile file{.tensors = {}, .prompts = static_cast<std::size_t>(rows)};
  for (const auto& entry : index.tensors()) {
    try {
      file.tensors[entry.name] = {.shape = entry.shape, .data = float_values(entry, bytes)};
    } catch (const std::runtime_error& error) {
      refuse(error.what());
    }
  }
  return file;
}

}  // namespace troupe::spec
