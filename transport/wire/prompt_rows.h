#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/actor_messages.h"

namespace troupe::wire {

/// The texts of some of a request's pictures: negative ones first where there is guidance, as
/// diffusers stacks them, then each picture's own. Each different one is encoded once.
struct PromptRows {
  std::vector<std::string> unique;
  std::vector<std::int64_t> of_row;  // which of them a row has
};

inline PromptRows prompt_rows(const ImageRequest& request, RowRange images, bool guided) {
  PromptRows rows;
  const auto add = [&](const std::string& text) {
    const auto found = std::find(rows.unique.begin(), rows.unique.end(), text);
    rows.of_row.push_back(found - rows.unique.begin());
    if (found == rows.unique.end()) rows.unique.push_back(text);
  };
  for (int image = images.begin; guided && image < images.end; ++image)
    add(request.negative_prompts.empty() ? request.negative_prompt
                                         : request.negative_prompts[image]);
  for (int image = images.begin; image < images.end; ++image)
    add(request.prompts[image / request.images_per_prompt]);
  return rows;
}

}  // namespace troupe::wire
