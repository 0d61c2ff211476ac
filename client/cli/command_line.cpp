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

void say(const std::string& what) {
  std::cerr << coloured("troupe:", Colour::red, STDERR_FILENO) << " " << what << std::endl;
}

int report(Error error, int exit_code, bool json) {
  if (error.code == ErrorCode::unreachable) error.what = one_line(error.what) + kStartOne;
  // Where a terminal showed ^C.
  if (error.code == ErrorCode::interrupted && isatty(STDERR_FILENO)) std::cerr << "\r\x1b[K";
  if (json) print_json({{"error", to_json(error)}});
  say(one_line(error.what));
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
    return verb.run();
  } catch (const UsageError& error) {
    if (verb.json()) print_json({{"error", to_json(Error{ErrorCode::usage, error.what()})}});
    return usage(verb.app().name(), error.what());
  } catch (const CommandError& error) {
    return report(error.error, error.exit_code, verb.json());
  } catch (const std::bad_alloc& error) {
    return report({ErrorCode::out_of_memory, text_of(error)}, kFailed, verb.json());
  } catch (const std::exception& error) {
    return report({ErrorCode::failed, text_of(error)}, kFailed, verb.json());
  }
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  Options app("Troupe: diffusion models on a cluster of actors.", "troupe");
  app.set_footer(kExamples);
  app.set_version(kVersion);
  const auto verbs = make_verbs(app);

  std::string command;
  try {
    for (const auto& verb : verbs) {
      command = verb->app().name();
      if (argc > 1 && command == argv[argc > 2 && argv[1] == std::string("help") ? 2 : 1])
        take_defaults(verb->app());
    }
    command.clear();
    const auto parsed = app.parse(argc, argv);
    if (parsed == Options::Parsed::help) std::cout << app.help();
    if (parsed == Options::Parsed::version) std::cout << kVersion << std::endl;
    if (parsed != Options::Parsed::yes) return flushed(kOk);
  } catch (const UsageError& error) {
    for (const auto& verb : verbs)
      if (verb->app().parsed()) command = verb->app().name();
    return usage(command, error.what());
  } catch (const std::runtime_error& error) {
    return report({ErrorCode::failed, error.what()}, kFailed, false);
  }
  const bool asks_help = app.remaining() == std::vector<std::string>{"help"};
  for (const auto& verb : verbs) {
    if (!verb->app().parsed()) continue;
    command = verb->app().name();
    const std::vector<std::string> extras = verb->app().remaining();
    if (asks_help && argv[1] == std::string("help")) {
      std::cout << app.help();  // of the verb that was parsed
      return flushed(kOk);
    }
    if (!extras.empty()) return usage(command, unexpected_text(verb->app().cli(), extras));
    if (const auto before = app.remaining(); !before.empty() && before.front()[0] != '-')
      return usage("", unknown_verb_text(before.front(), command, verbs));
    if (!app.remaining().empty())
      return usage(command, unexpected_text(verb->app().cli(), app.remaining()));
    const int exit_code = run_verb(*verb);
    return flushed(exit_code, verb->goes_on());
  }
  if (app.remaining().empty()) {
    std::cerr << app.help();
    return kUsage;
  }
  if (asks_help) {
    std::cout << app.help();
    return flushed(kOk);
  }
  auto words = app.remaining();
  if (words.size() > 1 && words.front() == "help") words.erase(words.begin());
  const std::string word = words.front();
  return usage("", word[0] == '-'
                       ? unexpected_text(app.cli(), app.remaining())
                       : unknown_verb_text(word, words.size() > 1 ? words[1] : "", verbs));
}

}  // namespace troupe::cli
