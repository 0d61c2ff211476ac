#include "client/cli/defaults.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string_view>
#include <vector>

#include "base/suggest.h"
#include "client/cli/suggest.h"
#include "client/cli/verb.h"
#include "client/own_cluster.h"

namespace troupe::cli {
namespace {

using Values = std::vector<std::string>;

/// Returns the value of an environment variable, "" if it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns the long names of an option, without dashes.
Values long_names(const Option& option) {
  Values names;
  for (const std::string& name : option.names())
    if (name.starts_with("--")) names.push_back(name.substr(2));
  return names;
}

/// Names of options that values can be set of.
Values option_names(const Options& app) {
  Values names;
  for (const auto& option : app.all())
    for (std::string& name : long_names(*option))
      names.push_back(std::move(name));
  return names;
}

bool has_option(const Options& app, const std::string& name) {
  const auto names = option_names(app);
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Sets an option as if the values were its own default: the option does not count as given.
void set_default(Option& option, const Values& values, const std::string& from) {
  try {
    option.set_default(values);
  } catch (const UsageError& error) {
    throw UsageError(from + ": " + error.what());
  }
}

/// The settings for one verb; those of its section go before the others.
std::map<std::string, Values> settings_for(const Options& verb, const std::string& path) {
  const auto& verbs = verb.parent()->commands();
  std::map<std::string, Values> common, own;
  for (const auto& [section, name, values] : client::read_defaults(path)) {
    if (section.empty()) {
      Values known;
      for (const auto& one : verbs)
        for (auto& option : option_names(*one))
          known.push_back(option);
      if (std::find(known.begin(), known.end(), name) == known.end())
        throw UsageError(path + ": " + name + " is no command's option" +
                         did_you_mean(name, known));
      if (has_option(verb, name)) common[name] = values;
      continue;
    }
    const Options* meant = nullptr;
    Values known;
    for (const auto& one : verbs) {
      known.push_back(one->name());
      if (one->name() == section) meant = one.get();
    }
    if (meant == nullptr)
      throw UsageError(path + ": section " + section + " is no command" +
                       did_you_mean(section, known));
    if (!has_option(*meant, name))
      throw UsageError(path + ": " + name + " is no option of " + section +
                       did_you_mean(name, option_names(*meant)));
    if (meant == &verb) own[name] = values;
  }
  own.merge(common);
  return own;
}

/// Variables of this name's kind that no option of the command reads: of the Python package, of
/// actors' processes, of the scripts that build and test.
constexpr auto kOthers = std::to_array<std::string_view>(
    {"TROUPE_CONFIG", "TROUPE_URL", "TROUPE_API_KEY", "TROUPE_INCARNATION", "TROUPE_REHEARSE",
     "TROUPE_BUILD", "TROUPE_DEPS", "TROUPE_JOBS", "TROUPE_PYTHON", "TROUPE_UNITY"});

/// Warns of variables that were probably meant for an option, of whatever command.
void warn_of_slips(const Options& app, const std::string& verb_name) {
  Values known;
  std::map<std::string, std::string> instead;  // the variable that the option of a name reads
  for (const auto& verb : app.commands()) {
    for (const auto& option : verb->all()) {
      if (!option->is_configurable()) continue;
      const std::string own = option->environment();
      if (!own.empty()) known.push_back(own);
      for (const std::string& name : long_names(*option)) {
        const std::string usual = variable_of(name);
        if (own.empty() || own == usual)
          known.push_back(usual);
        else
          instead[usual] = own;
      }
    }
  }
  constexpr std::string_view kPrefix = "TROUPE_";
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const std::string name(entry.substr(0, entry.find('=')));
    if (!name.starts_with(kPrefix) || std::ranges::count(known, name) > 0 ||
        std::ranges::count(kOthers, name) > 0)
      continue;
    // The prefix is no part of what is compared, or it would allow two slips more.
    Values names;
    for (const std::string& one : known)
      if (one.starts_with(kPrefix)) names.push_back(one.substr(kPrefix.size()));
    const std::string bare = name.substr(kPrefix.size());
    std::string option = "--" + bare;
    std::ranges::transform(option, option.begin(), [](unsigned char c) { return std::tolower(c); });
    std::string meant = nearest(bare, names);
    if (!meant.empty()) meant = std::string(kPrefix) + meant;
    if (const auto other = name_here(option, verb_name); !other.empty())
      meant = variable_of(other.substr(0, other.find_first_of(" ;")));
    if (const auto found = instead.find(name); found != instead.end()) meant = found->second;
    if (!meant.empty())
      std::cerr << "troupe: warning: " << name << " sets no option; did you mean " << meant
                << "?\n";
  }
}

}  // namespace

void take_defaults(Options& verb) {
  warn_of_slips(*verb.parent(), verb.name());
  const std::string path = client::defaults_file();
  const auto settings = path.empty() ? std::map<std::string, Values>{} : settings_for(verb, path);
  for (const std::string& name : option_names(verb)) {
    Option& option = *verb.get_option("--" + name);
    if (!option.is_configurable()) continue;
    const std::string set = variable_of(name);
    // Others are read by CLI11 itself.
    const std::string value = option.environment().empty() ? variable(set.c_str()) : "";
    if (!value.empty()) {
      set_default(option, {value}, set);
    } else if (const auto found = settings.find(name); found != settings.end()) {
      set_default(option, found->second, path);
    }
  }
}

}  // namespace troupe::cli
