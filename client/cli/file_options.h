#pragma once
#include <string>

#include "troupe/client.h"

namespace troupe::cli {

/// `FILE[:SCALE]`: what follows the last colon is the scale where it is a number, else part of the
/// name, which becomes absolute. Throws UsageError for a scale out of bounds, and where only the
/// part before the colon is a file here: then what follows was meant to be a scale.
Lora parse_lora(const std::string& text);

/// `FILE.safetensors[:WORD]`: what follows the ending and a colon is the word. The file's name
/// becomes absolute. Throws UsageError where nothing follows the colon.
Embedding parse_embedding(const std::string& text);

}  // namespace troupe::cli
