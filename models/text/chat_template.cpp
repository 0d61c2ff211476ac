#include "models/text/chat_template.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "models/spec/config.h"
#include "models/spec/json_text.h"
#include "models/text/pattern.h"

namespace troupe::models {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTemplateBytes = 1U << 20U;

bool has(const std::string& text, const char* pattern) {
  return !Pattern(pattern).find_all(text).empty();
}

void check(const fs::path& file, const std::string& text, spec::ChatTemplate use) {
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error("[load_tokenizer] " + file.string() + ": the chat template " + why +
                             ", so it is none of Qwen's, whose form alone is supported");
  };
  // Jinja spells a line's end as a backslash and an n within quotes of either kind.
  constexpr const char* kUser =
      R"(\{\{-?\s*['"]<\|im_start\|>['"]\s*\+\s*message(?:\.role|\[['"]role['"]\])\s*\+\s*['"]\\n['"]\s*\+\s*)"
      R"((?:content|message\.content|message\[['"]content['"]\])\s*\+\s*)"
      R"(['"]<\|im_end\|>(?:['"]\s*\+\s*['"])?\\n['"]\s*-?\}\})";
  constexpr const char* kAnswer =
      R"(\{%-?\s*if add_generation_prompt\s*-?%\}\s*\{\{-?\s*['"]<\|im_start\|>assistant\\n['"]\s*-?\}\}\s*)"
      R"((?:\{%-?\s*if enable_thinking is defined and enable_thinking is false\s*-?%\}\s*\{\{-?\s*['"]<think>\\n\\n</think>\\n\\n['"]\s*-?\}\}\s*\{%-?\s*endif\s*-?%\}\s*)?)"
      R"(\{%-?\s*endif\s*-?%\}\s*\z)";
  if (!has(text, kUser))
    refuse("does not put a user's message between <|im_start|> and <|im_end|>");
  if (has(text, R"(\|\s*trim)")) refuse("trims messages");
  if (!has(text, kAnswer)) refuse("does not end with the head of an answer");
  if (use == spec::ChatTemplate::unthought_answer && !has(text, R"(enable_thinking is false)"))
    refuse("cannot begin an answer without thinking");
  if (has(text, R"(<\|im_start\|>system\\n[^'"])")) refuse("has a system message of its own");
}

}  // namespace

void check_chat_template(const fs::path& folder, spec::ChatTemplate use) {
  bool found = false;
  if (const auto file = folder / "chat_template.jinja"; spec::is_file(file)) {
    check(file, spec::read_text_file(file, kMaxTemplateBytes), use);
    found = true;
  }
  if (const auto file = folder / "tokenizer_config.json"; spec::is_file(file)) {
    const auto config = spec::ConfigReader::read(file);
    if (config.has_value("chat_template")) {
      check(file, config.text("chat_template"), use);
      found = true;
    }
  }
  if (!found) {
    throw std::runtime_error("[load_tokenizer] " + folder.string() +
                             ": has no chat template, which the pipeline puts prompts into "
                             "(chat_template.jinja)");
  }
}

}  // namespace troupe::models
