#include "models/spec/json_text.h"

#include <cctype>
#include <fstream>
#include <set>
#include <stdexcept>
#include <vector>

namespace troupe::spec {
namespace {

constexpr int kMaxDepth = 64;

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

bool has_bare_word(std::string_view text, std::size_t at, std::string_view word) {
  if (text.substr(at, word.size()) != word) return false;
  const std::size_t end = at + word.size();
  return end == text.size() || !is_word_character(text[end]);
}

}  // namespace

std::string read_text_file(const std::filesystem::path& file, std::uint64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw std::runtime_error("[read_text_file] " + file.string() + ": no such file");
  }
  const std::uint64_t size = std::filesystem::file_size(file, error);
  if (error || size > max_bytes) {
    throw std::runtime_error("[read_text_file] " + file.string() + ": " +
                             (error ? error.message()
                                    : "has " + std::to_string(size) + " bytes, at most " +
                                          std::to_string(max_bytes) + " are read"));
  }
  std::ifstream stream(file, std::ios::binary);
  std::string text(size, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(size));
  if (!stream) throw std::runtime_error("[read_text_file] " + file.string() + ": cannot be read");
  return text;
}

std::string standard_json(std::string_view text) {
  static constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\' && i + 1 < text.size()) result += text[i++];
      if (c == '"') in_string = false;
      result += text[i++];
      continue;
    }
    if (c == '"') in_string = true;
    std::string_view found;
    if ((c == '-' || c == 'I' || c == 'N') && (i == 0 || !is_word_character(text[i - 1]))) {
      for (std::string_view word : kWords) {
        if (has_bare_word(text, i, word)) found = word;
      }
    }
    if (found.empty()) {
      result += text[i++];
    } else {
      result.append("\"").append(found).append("\"");
      i += found.size();
    }
  }
  return result;
}

nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file) {
  using Json = nlohmann::json;
  const auto fail = [&file](const std::string& why) -> void {
    throw std::runtime_error("[parse_json] " + file.string() + ": " + why);
  };
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) fail("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) fail("key \"" + key + "\" occurs twice");
    }
    return true;
  };
  try {
    const std::string standard = standard_json(text);
    return Json::parse(standard, watch);
  } catch (const Json::exception& error) {
    fail(std::string("is not JSON: ") + error.what());
  }
  return {};
}

}  // namespace troupe::spec
