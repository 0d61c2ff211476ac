#include "client/cli/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string_view>
#include <vector>

#include "base/available_memory.h"
#include "base/suggest.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/suggest.h"
#include "client/cli/terminal.h"
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

/// Warns of a line of the file that is for an option which takes no default.
void warn_of_line(const Option& option, const std::map<std::string, client::Default>& lines) {
  for (const std::string& name : long_names(option))
    if (const auto found = lines.find(name); found != lines.end())
      std::cerr << "troupe: warning: " << found->second.place << ": " << name
                << " has no effect: --" << name << " is taken from the command line alone\n";
}

/// Returns the defaults of the options that the command line does not have.
std::vector<Setting> settings_for(const Options& verb) {
  const std::string path = client::defaults_file();
  const auto lines =
      path.empty() ? std::map<std::string, client::Default>{} : lines_for(verb, path);
  std::vector<Setting> settings;
  for (const auto& option : verb.all()) {
    if (!option->is_configurable()) {
      warn_of_line(*option, lines);
      continue;
    }
    if (option->count() > 0) continue;
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
  std::map<std::string, std::string> instead;     // the variable that the option of a name reads
  std::map<std::string, std::string> only_typed;  // options that no default is taken for
  for (const auto& verb : app.commands()) {
    for (const auto& option : verb->all()) {
      if (!option->is_configurable()) {
        for (const std::string& name : long_names(*option))
          only_typed[variable_of(name)] = "--" + name;
        continue;
      }
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
    const auto found_typed = only_typed.find(name);
    if (found_typed != only_typed.end() && !instead.contains(name)) {
      std::cerr << "troupe: warning: " << name << " has no effect: " << found_typed->second
                << " is taken from the command line alone\n";
      continue;
    }
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

/// Gives the verb's options that the command line does not have the defaults that the user has set:
/// in the environment (Option::environment), else in the file, under [VERB] or before the first
/// section. The file is TOML as CLI11 reads it, with names of options without dashes in front.
/// `check` throws UsageError where options contradict each other: then a default is left out that
/// is a rival of what goes before it. Warns on standard error of a variable that was probably meant
/// for an option. Throws UsageError for a name that no option has, for a value that the option does
/// not take and for what `check` still refuses, std::runtime_error for a file that cannot be read.
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

/// Returns an error's text behind the variables and lines of the file that set options which it
/// names: "TROUPE_STEPS: --steps is …". What stands behind "; " or in backquotes is advice, and
/// what is part of a path is no option.
std::string with_places(const Options& verb, const std::string& what) {
  std::map<std::size_t, std::string> places;  // by where the option is named
  const auto is_part = [&](std::size_t at) {
    return at < what.size() &&
           (std::isalnum(static_cast<unsigned char>(what[at])) != 0 || what[at] == '-');
  };
  const auto is_named = [&](std::size_t at, std::size_t size) {
    const bool in_path = at > 0 && (is_part(at - 1) || what[at - 1] == '/' || what[at - 1] == '.');
    const bool is_advice = what.rfind("; ", at) != std::string::npos ||
                           std::count(what.begin(), what.begin() + at, '`') % 2 == 1;
    return !in_path && !is_advice && !is_part(at + size) &&
           (at + size >= what.size() || what[at + size] != '/');
  };
  for (const auto& option : verb.all()) {
    if (option->place().empty()) continue;
    for (const std::string& name : long_names(*option)) {
      std::size_t at = what.find("--" + name);
      while (at != std::string::npos && !is_named(at, 2 + name.size()))
        at = what.find("--" + name, at + 1);
      if (at != std::string::npos) places[at] = option->place();
    }
  }
  std::string text;
  for (const auto& [at, place] : places)
    text += (text.empty() ? "" : ", ") + place;
  return text + (text.empty() ? "" : ": ") + what;
}

/// Shows the defaults in the verb's help. What is wrong with them is said on standard error.
void show_defaults(Options& verb) {
  try {
    if (!verb.takes_defaults()) return;
    for (const Setting& one : settings_for(verb))
      one.apply();
  } catch (const std::runtime_error& error) {
    std::cerr << "troupe: warning: " << with_places(verb, one_line(error.what())) << std::endl;
  }
}

constexpr const char* kExamples = R"(Examples:
  troupe run --model DIR --prompt "a red circle" --cfg 2 --pp 2 --patches 4
  troupe plan --model DIR --cfg 2 --pp 2 --height 512 --width 768
  troupe start --actors 4 --model DIR --detach
  troupe submit --prompt "a green star" --cfg 2 --pp 2 --output star.png
  troupe status; troupe jobs; troupe cancel 3; troupe stop
  troupe inspect star.png

Defaults of options: TROUPE_STEPS in the environment is that of --steps, and so
on; else `steps = 30` in ~/.config/troupe/config.toml, or in the file that
TROUPE_CONFIG names. What the command line says goes before both.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP
(start: 0).

`troupe COMMAND --help` tells a command's options. More: docs/commands.md)";

constexpr const char* kVersion = "troupe " TROUPE_VERSION;

constexpr const char* kStartOne =
    "; start one with `troupe start`, or name another with --connect or TROUPE_ADDRESS";

int report(const Verb& verb, Error error, int exit_code) {
  error.what = with_places(verb.app(), in_options(one_line(error.what)));
  if (error.code == ErrorCode::unreachable) error.what += kStartOne;
  // Where a terminal showed ^C.
  if (error.code == ErrorCode::interrupted && isatty(STDERR_FILENO)) std::cerr << "\r\x1b[K";
  if (verb.json()) print_json({{"error", to_json(error)}});
  say(error.what);
  return exit_code;
}

int usage(const std::string& command, const std::string& what) {
  say(one_line(what) + " (see troupe " + (command.empty() ? "" : command + " ") + "--help)");
  return kUsage;
}

std::string unknown_verb_text(const std::string& word, const std::string& next,
                              const std::vector<std::unique_ptr<Verb>>& verbs) {
  std::vector<std::string> known;
  for (const auto& verb : verbs)
    known.push_back(verb->app().name());
  known.insert(known.end(), {"help", "--version"});
  if (const auto here = command_here(word, next); !here.empty())
    return "unknown command " + word + ": here it is " + here;
  return "unknown command " + word + did_you_mean(word, known);
}

/// A verb whose results could not be printed has failed.
int flushed(int exit_code, const std::string& goes_on = "") {
  std::cout.flush();
  if (std::cout.good()) return exit_code;
  say("standard output cannot be written" + (goes_on.empty() ? "" : ", but " + goes_on));
  return exit_code == kOk ? kFailed : exit_code;
}

int run_verb(Verb& verb) {
  try {
    take_defaults(verb.app(), [&] { verb.check(); });
    return verb.run();
  } catch (const UsageError& error) {
    const auto what = with_places(verb.app(), one_line(error.what()));
    if (verb.json()) print_json({{"error", to_json(Error{ErrorCode::usage, what})}});
    return usage(verb.app().name(), what);
  } catch (const CommandError& error) {
    return report(verb, error.error, error.exit_code);
  } catch (const std::bad_alloc& error) {
    return report(verb, {ErrorCode::out_of_memory, text_of(error)}, kFailed);
  } catch (const std::exception& error) {
    return report(verb, {ErrorCode::failed, text_of(error)}, kFailed);
  }
}

/// Prints the help of what was parsed.
int tell_help(const Options& app, const std::vector<std::unique_ptr<Verb>>& verbs) {
  for (const auto& verb : verbs)
    if (verb->app().parsed()) show_defaults(verb->app());
  std::cout << app.help();
  return flushed(kOk);
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  Options app("Troupe: diffusion models on a cluster of actors.", "troupe");
  app.set_footer(kExamples);
  app.set_version(kVersion);
  const auto verbs = make_verbs(app);
  const auto parsed_verb = [&] {
    return std::ranges::find_if(verbs, [](const auto& verb) { return verb->app().parsed(); });
  };
  try {
    switch (app.parse(argc, argv)) {
      case Options::Parsed::help:
        return tell_help(app, verbs);
      case Options::Parsed::version:
        std::cout << kVersion << std::endl;
        return flushed(kOk);
      case Options::Parsed::yes:
        break;
    }
  } catch (const UsageError& error) {
    const auto verb = parsed_verb();
    return usage(verb == verbs.end() ? "" : (*verb)->app().name(), error.what());
  }
  auto words = app.remaining();
  const bool asks_help = words == std::vector<std::string>{"help"};
  if (const auto found = parsed_verb(); found != verbs.end()) {
    Verb& verb = **found;
    const std::string command = verb.app().name();
    if (asks_help && argv[1] == words.front()) return tell_help(app, verbs);
    if (const auto why = verb.app().complaint(verb.app().remaining()); !why.empty())
      return usage(command, why);
    if (!words.empty() && argv[1] == words.front() && words.front()[0] != '-')
      return usage("", unknown_verb_text(words.front(), command, verbs));
    if (const auto why = verb.app().complaint(words); !why.empty()) return usage(command, why);
    const int exit_code = run_verb(verb);
    return flushed(exit_code, verb.goes_on());
  }
  if (!words.empty() && words.front() == "--") words.erase(words.begin());
  if (words.empty()) {
    std::cerr << app.help();
    return kUsage;
  }
  if (asks_help) return tell_help(app, verbs);
  if (words.size() > 1 && words.front() == "help") words.erase(words.begin());
  const std::string word = words.front();
  return usage("", word[0] == '-'
                       ? app.complaint(words)
                       : unknown_verb_text(word, words.size() > 1 ? words[1] : "", verbs));
}

}  // namespace troupe::cli
