#pragma once

#include <string>
#include <string_view>

namespace troupe::models {

/// A prompt as WanPipeline takes it: repaired (`repair_text`), character references undone twice,
/// every run of white space a single space, none at the ends. Case stays. `text` is valid UTF-8.
///
/// Equals prompt_clean of diffusers 0.42 with ftfy 6.3, except for what `repair_text` and
/// `unescape_html` name. Where ftfy is not installed diffusers skips the repair; this does not.
std::string clean_prompt(std::string_view text);

}  // namespace troupe::models
