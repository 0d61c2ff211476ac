#pragma once
#include <cstdint>
#include <string>

namespace troupe::web {

enum class PromptKind : std::uint8_t { positive, negative };

/// The words of a prompt in the syntax of the AUTOMATIC1111 web UI: without comments, and with
/// escaped brackets as what they are. What would weigh words, change them in mid-run or load
/// networks is refused by name; with `cut_networks` networks are cut out, as the web UI does where
/// they are disabled. A negative prompt has neither networks nor AND. Throws ApiError naming
/// `field`. Takes time in proportion to the text. Source: the web UI's modules/prompt_parser.py,
/// extra_networks.py and processing_scripts/comments.py.
std::string words_of_prompt(const std::string& field, const std::string& prompt, PromptKind kind,
                            bool cut_networks = false);

}  // namespace troupe::web
