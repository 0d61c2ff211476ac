#include "client/cli/parse_errors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <regex>

#include "base/suggest.h"
#include "base/text.h"
#include "client/cli/suggest.h"
#include "client/cli/table.h"

namespace troupe::cli {

std::string one_line(std::string text) {
  text = on_one_line(without_rooms(text));
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

namespace {

/// "; --x is an option of `troupe submit` and `troupe wait`"; "" where it is one of none, or many.
std::string whose_option(const CLI::App& app, const std::string& name) {
  constexpr std::size_t kMostNamed = 3;
  if (app.get_parent() == nullptr) return "";
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_parent()->get_subcommands(nullptr))
    if (verb != &app && verb->get_option_no_throw(name) != nullptr)
      verbs.push_back("`troupe " + verb->get_name() + "`");
  if (verbs.empty() || verbs.size() > kMostNamed) return "";
  std::string text;
  for (std::size_t i = 0; i < verbs.size(); ++i)
    text += (i == 0 ? "" : i + 1 == verbs.size() ? " and " : ", ") + verbs[i];
  return "; " + name + " is an option of " + text;
}

}  // namespace

std::string unexpected_text(const CLI::App& app, const std::vector<std::string>& extras) {
  const auto flag = std::find_if(extras.begin(), extras.end(), [](const std::string& extra) {
    return extra.size() > 1 && extra[0] == '-';
  });
  if (flag == extras.end()) {
    const bool prompt = app.get_option_no_throw("PROMPT") != nullptr;
    return "unexpected argument \"" + extras.front() + "\"" +
           (prompt ? "; a prompt of several words stands in quotes" : "");
  }
  const std::string name = flag->substr(0, flag->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& longer : option->get_lnames())
      known.push_back("--" + longer);
  }
  const std::string here = name_here(name, app.get_name());
  const std::string option_here = here.substr(0, here.find_first_of(" ;"));
  const bool known_here = std::find(known.begin(), known.end(), option_here) != known.end();
  const std::string unknown = "unknown option " + name;
  if (known_here) return unknown + ": here it is " + here;
  if (const auto why = why_not_here(name, app.get_name()); !why.empty())
    return unknown + ": " + why;
  const auto guess = did_you_mean(name, known);
  return unknown + (guess.empty() ? whose_option(app, here.empty() ? name : option_here) : guess);
}

}  // namespace troupe::cli
