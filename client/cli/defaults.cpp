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

/// Default that the user has set for an option of a verb.
struct Setting {
  Option* option = nullptr;
  Values values;
  Source source = Source::file;
  std::string place;

  void apply() const { option->set_default(values, source, place); }
};

/// Returns the verb's lines of the file by option; those of its section go before the others.
std::map<std::string, client::Default> lines_for(const Options& verb, const std::string& path) {
  const auto& verbs = verb.parent()->commands();
  std::map<std::string, client::Default> common, own;
  for (const auto& line : client::read_defaults(path)) {
    const auto& name = line.name;
    if (line.section.empty()) {
      Values known;
      for (const auto& one : verbs)
        for (auto& option : option_names(*one))
          known.push_back(option);
      if (std::ranges::count(known, name) == 0)
        throw UsageError(line.place + ": " + name + " is no command's option" +
                         did_you_mean(name, known));
      if (has_option(verb, name)) common[name] = line;
      continue;
    }
    Values known;
    for (const auto& one : verbs)
      known.push_back(one->name());
    const auto meant = std::ranges::find(known, line.section);
    if (meant == known.end())
      throw UsageError(line.place + ": section " + line.section + " is no command" +
                       did_you_mean(line.section, known));
    const Options& other = *verbs[meant - known.begin()];
    if (!has_option(other, name))
      throw UsageError(line.place + ": " + name + " is no option of " + line.section +
                       did_you_mean(name, option_names(other)));
    if (&other == &verb) own[name] = line;
  }
  own.merge(common);
  return own;
}

/// Returns the defaults of the options that the command line does not have.
std::vector<Setting> settings_for(const Options& verb) {
  const std::string path = client::defaults_file();
  const auto lines =
      path.empty() ? std::map<std::string, client::Default>{} : lines_for(verb, path);
  std::vector<Setting> settings;
  for (const auto& option : verb.all()) {
    if (!option->is_configurable() || option->count() > 0) continue;
    const std::string set = option->environment();
    const std::string value = set.empty() ? "" : variable(set.c_str());
    if (!value.empty()) {
      settings.push_back({option.get(), {value}, Source::environment, set});
      continue;
    }
    for (const std::string& name : long_names(*option))
      if (const auto found = lines.find(name); found != lines.end())
        settings.push_back({option.get(), found->second.values, Source::file, found->second.place});
  }
  return settings;
}

bool passes(const std::function<void()>& check) {
  try {
    check();
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

/// Leaves out as few of the defaults as can be that are rivals of what goes before them, until
/// `check` finds nothing. Returns false, with all of them set, if that does not come to be.
bool leave_rivals_out(const Options& verb, std::vector<Setting> settings,
                      const std::function<void()>& check) {
  std::ranges::stable_sort(settings, {}, &Setting::source);
  std::vector<Setting> left_out;
  bool good = false;
  for (auto one = settings.begin(); one != settings.end() && !good; ++one) {
    if (!verb.has_stronger_rival(*one->option)) continue;
    one->option->leave_default_out();
    left_out.push_back(*one);
    good = passes(check);
  }
  for (auto one = left_out.rbegin(); one != left_out.rend(); ++one) {
    one->apply();
    if (good && !passes(check)) one->option->leave_default_out();
  }
  return good;
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
      for (const std::string& name : long_names(*option))
        if (const std::string usual = variable_of(name); own != usual) instead[usual] = own;
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

void take_defaults(Options& verb, const std::function<void()>& check) {
  if (!verb.takes_defaults()) return check();
  warn_of_slips(*verb.parent(), verb.name());
  const auto settings = settings_for(verb);
  for (const Setting& one : settings)
    one.apply();
  try {
    check();
  } catch (const UsageError&) {
    if (!leave_rivals_out(verb, settings, check)) throw;
    check();
  }
}

void show_defaults(Options& verb) {
  try {
    if (!verb.takes_defaults()) return;
    for (const Setting& one : settings_for(verb))
      one.apply();
  } catch (const std::runtime_error& error) {
    std::cerr << "troupe: warning: " << with_places(verb, one_line(error.what())) << std::endl;
  }
}

std::string with_places(const Options& verb, const std::string& what) {
  std::map<std::size_t, std::string> places;  // by where the option is named
  const auto goes_on = [&](std::size_t at) {
    return at < what.size() &&
           (std::isalnum(static_cast<unsigned char>(what[at])) != 0 || what[at] == '-');
  };
  for (const auto& option : verb.all()) {
    if (option->place().empty()) continue;
    for (const std::string& name : long_names(*option)) {
      std::size_t at = what.find("--" + name);
      while (at != std::string::npos && goes_on(at + 2 + name.size()))
        at = what.find("--" + name, at + 1);
      if (at != std::string::npos) places[at] = option->place();
    }
  }
  std::string text;
  for (const auto& [at, place] : places)
    text += (text.empty() ? "" : ", ") + place;
  return text + (text.empty() ? "" : ": ") + what;
}

}  // namespace troupe::cli
