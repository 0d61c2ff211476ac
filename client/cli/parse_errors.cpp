#include "client/cli/parse_errors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <regex>

#include "base/suggest.h"
#include "client/cli/suggest.h"
#include "client/cli/table.h"

namespace troupe::cli {

std::string one_line(std::string text) {
  static const std::regex kTags("(^|: |; then )(\\[[A-Za-z_. ]+\\] )+");
  text = std::regex_replace(text, kTags, "$1");
  text = printable(text);
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.erase(text.find_last_not_of(" .") + 1);
  return text;
}

std::string by_option(const std::string& what, const RoomOptions& options) {
  for (const auto& [room, option] : options) {
    const std::string tag = "[" + room + "] ";
    if (what.starts_with(tag)) return option + " " + what.substr(tag.size());
  }
  return what;
}

std::string parse_error_text(const std::string& what) {
  static const std::regex kTwice("(\\S+): At Most 1 required but received \\d+");
  static const std::regex kMissing("(\\S+): 1 required (\\S+) missing");
  static const std::regex kConversion("Could not convert: (\\S+) = (.*)");
  std::smatch match;
  if (std::regex_match(what, match, kTwice)) return match.str(1) + " is given twice";
  if (std::regex_match(what, match, kMissing))
    return match.str(1) + " needs " + match.str(2) + " after it";
  if (std::regex_match(what, match, kConversion))
    return match.str(1) + ": \"" + match.str(2) + "\" is not a number";
  return what;
}

std::string unexpected_text(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto flag = std::find_if(extras.begin(), extras.end(), [](const std::string& extra) {
    return extra.size() > 1 && extra[0] == '-';
  });
  if (flag == extras.end()) return "unexpected argument \"" + extras.front() + "\"";
  const std::string name = flag->substr(0, flag->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& longer : option->get_lnames())
      known.push_back("--" + longer);
  }
  const std::string here = name_here(name);
  const bool known_elsewhere = std::find(known.begin(), known.end(), here) != known.end();
  return "unknown option " + name +
         (known_elsewhere ? ": here it is " + here : did_you_mean(name, known));
}

}  // namespace troupe::cli
