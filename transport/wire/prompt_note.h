#pragma once
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

namespace troupe::wire {

/// A warning about one prompt of a request begins with its number. Where prompts of several jobs
/// are computed together, it is told to that one's job alone, with the number that the prompt has
/// there.
struct PromptNote {
  std::int32_t prompt = 0;
  std::string what;

  std::string text() const { return "prompt " + std::to_string(prompt) + " " + what; }
  /// Nothing for any other warning.
  static std::optional<PromptNote> in(const std::string& warning) {
    const std::string head = "prompt ";
    if (!warning.starts_with(head)) return std::nullopt;
    PromptNote note;
    const char* end = warning.data() + warning.size();
    const auto number = std::from_chars(warning.data() + head.size(), end, note.prompt);
    if (number.ec != std::errc() || number.ptr == end || *number.ptr != ' ') return std::nullopt;
    note.what.assign(number.ptr + 1, end);
    return note;
  }
};

}  // namespace troupe::wire
