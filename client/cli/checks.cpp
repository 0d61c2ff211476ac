#include "client/cli/checks.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "base/format.h"
#include "base/number_text.h"
#include "base/parse_number.h"
#include "base/suggest.h"

namespace troupe::cli {
namespace {

constexpr const char* kBetweenWords = "|";

std::string in_quotes(const std::string& text) {
  return "\"" + text + "\"";
}

template <class T>
std::optional<T> parsed(std::string_view text) {
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  return parse_number<T>(text);
}

std::optional<double> finite(const std::string& text) {
  const auto value = parsed<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace

CLI::Validator whole(std::int64_t least, std::int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        const auto value = parsed<std::int64_t>(text);
        if (!value && !finite(text)) return in_quotes(text) + " is not a number";
        if (!value && text.find_first_of(".eE") != std::string::npos)
          return text + " is not a whole number";
        if (value && *value >= least && *value <= most) return "";
        return fmt::format("{} is out of bounds: a whole number from {} to {} is needed", text,
                           least, most);
      },
      "");
}

CLI::Validator number(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        const auto value = finite(text);
        if (!value) return in_quotes(text) + " is not a number";
        if (*value >= least && *value <= most) return "";
        return text + " is out of bounds: a number from " + number_text(least) + " to " +
               number_text(most) + " is needed";
      },
      "");
}

CLI::Validator number_above(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        const auto value = finite(text);
        if (!value) return in_quotes(text) + " is not a number";
        if (*value > least && *value <= most) return "";
        return text + " is out of bounds: a number above " + number_text(least) + ", up to " +
               number_text(most) + ", is needed";
      },
      "");
}

CLI::Validator seed_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "random") {
          std::random_device device;
          // As short as other tools' seeds are.
          text = std::to_string(std::uint32_t{device()});
        }
        if (parse_number<std::uint64_t>(text)) return "";
        return in_quotes(text) + " is not a whole number from 0 to 2^64 - 1" +
               (text == "-1" ? "; random picks one" : "");
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> words) {
  return with_words(CLI::Validator(
                        [words](std::string& text) -> std::string {
                          const bool known =
                              std::find(words.begin(), words.end(), text) != words.end();
                          return known ? "" : not_one_of(text, words);
                        },
                        ""),
                    words);
}

CLI::Validator with_words(CLI::Validator check, const std::vector<std::string>& words) {
  check.name(CLI::detail::join(words, kBetweenWords));
  return check;
}

std::vector<std::string> words_of(CLI::Option& option) {
  try {
    const std::string& words = option.get_validator(0)->get_name();
    return words.empty() ? std::vector<std::string>{} : CLI::detail::split(words, *kBetweenWords);
  } catch (const CLI::OptionNotFound&) {
    return {};
  }
}

CLI::Validator numeric_address() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        in6_addr address{};
        if (inet_pton(AF_INET, text.c_str(), &address) == 1) return "";
        if (inet_pton(AF_INET6, text.c_str(), &address) == 1) return "";
        return in_quotes(text) + " is not an address in numbers, as 10.0.0.1";
      },
      "");
}

std::string read_list(const std::string& text, const CLI::Validator& check,
                      const std::function<void(const std::string&)>& take) {
  int place = 1;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1, ++place) {
    end = text.find(',', begin);
    auto part = text.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.find_first_not_of(' ') == std::string::npos)
      return fmt::format("place {} of the list {} is empty", place, in_quotes(text));
    if (auto wrong = check(part); !wrong.empty()) return wrong;
    if (take) take(part);
  }
  return "";
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) -> std::string { return text.empty() ? "is empty" : ""; }, "");
}

}  // namespace troupe::cli
