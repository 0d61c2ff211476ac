#include "client/cli/file_options.h"

#include <filesystem>

#include "base/numbers.h"
#include "client/cli/verb.h"
#include "transport/wire/request_limits.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

using wire::kMaxLoraScale;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Lora whole_path(Lora lora) {
  lora.path = absolute_path(lora.path);
  return lora;
}

}  // namespace

Lora parse_lora(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || is_file(text)) return whole_path({text});
  const std::string file = text.substr(0, colon);
  const std::string after = text.substr(colon + 1);
  const std::string option = "--lora \"" + text + "\": ";
  if (const auto scale = parse_number<double>(after)) {
    if (!(*scale >= -kMaxLoraScale && *scale <= kMaxLoraScale))
      throw UsageError(option + "the scale is not a number from " + number_text(-kMaxLoraScale) +
                       " to " + number_text(kMaxLoraScale));
    return whole_path({file, *scale});
  }
  if (!is_file(file)) return whole_path({text});
  throw UsageError(option + (after.empty() ? "there is no scale" : "the scale is no number") +
                   " after the colon, as in " + file + ":0.8");
}

Embedding parse_embedding(const std::string& text) {
  static const std::string kEnd = ".safetensors:";
  const auto found = text.find(kEnd);
  if (found == std::string::npos || is_file(text)) return {absolute_path(text), ""};
  const auto colon = found + kEnd.size() - 1;
  if (colon + 1 == text.size())
    throw UsageError("--embedding \"" + text + "\": there is no word after the colon, as in " +
                     text + "my-cat");
  return {absolute_path(text.substr(0, colon)), text.substr(colon + 1)};
}

}  // namespace troupe::cli
