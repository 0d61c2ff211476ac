#include "client/cli/help_format.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "client/cli/table.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kNarrowestHelp = 60;
constexpr std::array kNeeded = {"ID", "FILE", "PLACE", "JOB"};

std::size_t help_width() {
  const std::size_t width = output_width();
  return width == 0 ? kWidth : std::clamp(width, kNarrowestHelp, kWidth);
}

/// Breaks a text into lines that leave `left` characters for what stands to their left.
std::string fitted(const std::string& text, std::size_t left) {
  std::string lines;
  for (const auto& line : wrapped(text, help_width() - left))
    lines += (lines.empty() ? "" : "\n") + line;
  return lines;
}

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t at; (at = text.find("\n\n\n")) != std::string::npos;)
      text.erase(at, 1);
    while (text.ends_with("\n\n"))
      text.pop_back();
    return text;
  }
  std::string make_description(const CLI::App* app) const override {
    return fitted(app->get_description(), 0) + "\n";
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    return CLI::Formatter::make_group(fitted(group, 1), is_positional, std::move(options));
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return fitted(option->get_description(), column_width_);
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    std::stringstream out;
    CLI::detail::format_help(out, verb->get_name(), fitted(verb->get_description(), column_width_),
                             column_width_);
    return out.str();
  }
  /// Paragraphs are fitted; lines that are indented, as examples, stand as they are.
  std::string make_footer(const CLI::App* app) const override {
    std::stringstream lines(app->get_footer());
    std::string text;
    for (std::string line; std::getline(lines, line);)
      text += (line.starts_with("  ") || line.empty() ? line : fitted(line, 0)) + "\n";
    return text;
  }
  std::string make_option_usage(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_usage(option);
    const auto name = option->get_name();
    const bool needed = option->get_default_str().empty() &&
                        std::find(kNeeded.begin(), kNeeded.end(), name) != kNeeded.end();
    if (needed && text.starts_with('[')) text = text.substr(1, text.size() - 2);
    return text;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() {
  return std::make_shared<HelpFormat>();
}

}  // namespace troupe::cli
