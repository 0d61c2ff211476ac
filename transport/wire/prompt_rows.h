#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/actor_messages.h"

namespace troupe::wire {

/// A request that brings its prompts' text along leaves the negative one to be encoded. Where a
/// model's negative text may be missing (`zero_negative`), that takes a negative prompt, if only an
/// empty one.
inline bool encodes_negative_alone(const ImageRequest& request, bool guided, bool zero_negative) {
  const bool said = request.negative_prompt || !request.negative_prompts.empty();
  return guided && !request.prompt_embeds.empty() && (said || !zero_negative) &&
         std::ranges::none_of(request.prompt_embeds, [](const NamedShape& tensor) {
           return tensor.name.starts_with("negative_");
         });
}

/// The texts of some of a request's pictures: negative ones first where there is guidance, as
/// diffusers stacks them, then each picture's own, unless the request brings its text along. Each
/// different one is encoded once.
struct PromptRows {
  std::vector<std::string> unique;
  std::vector<std::int64_t> of_row;  // number of the text that a row has
};

inline PromptRows prompt_rows(const ImageRequest& request, RowRange images, bool guided) {
  PromptRows rows;
  const auto add = [&](const std::string& text) {
    const auto found = std::find(rows.unique.begin(), rows.unique.end(), text);
    rows.of_row.push_back(found - rows.unique.begin());
    if (found == rows.unique.end()) rows.unique.push_back(text);
  };
  for (int image = images.begin; guided && image < images.end; ++image)
    add(request.negative_prompts.empty() ? request.negative_prompt.value_or("")
                                         : request.negative_prompts[image]);
  for (int image = images.begin; request.prompt_embeds.empty() && image < images.end; ++image)
    add(request.prompts[image / request.images_per_prompt]);
  return rows;
}

}  // namespace troupe::wire
