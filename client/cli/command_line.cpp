#include "client/cli/command_line.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "base/available_memory.h"
#include "base/suggest.h"
#include "client/cli/defaults.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/suggest.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

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
  error.what = with_places(verb.app(), one_line(error.what));
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
