#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/text/pattern.h"

namespace troupe::models {

/// A prompt as WanPipeline takes it: repaired (`repair_text`), character references undone twice,
/// every run of white space a single space, none at the ends. Case stays. `text` is valid UTF-8.
///
/// Equals prompt_clean of diffusers 0.42 with ftfy 6.3, except for what `repair_text` and
/// `unescape_html` name. Where ftfy is not installed diffusers skips the repair; this does not.
std::string clean_prompt(std::string_view text);

/// Cleans prompts as the captions of PixArt's training were cleaned: lower case; percent escapes,
/// addresses on the net, HTML, @names, Chinese characters, &quot; and &amp;, IP addresses, article
/// and product numbers, file names, runs of punctuation, sizes like 10x20 and shop phrases gone;
/// dashes and quotes of one kind; many-hyphened words apart. Twice over.
///
/// Equals PixArtAlphaPipeline(clean_caption=True) of diffusers 0.42 with Beautifulsoup 4.15 and
/// ftfy 6.3, except for what `repair_text` and `html_text` name, references in capitals (&AMP;
/// arising from a numeric one) and broken UTF-8 in percent escapes (a U+FFFD for each byte here).
/// Where those two packages are not installed diffusers leaves captions uncleaned; this cleans.
class CaptionCleaner {
 public:
  CaptionCleaner();

  /// Throws std::runtime_error when a caption is too tangled for the patterns' limits.
  std::string clean(std::string_view caption) const;

 private:
  std::string clean_once(std::string_view caption) const;

  std::vector<Pattern> addresses_;  // before markup is taken off
  std::vector<Pattern> marks_;      // then
  std::vector<Pattern> phrases_;    // after the text is repaired
};

}  // namespace troupe::models
