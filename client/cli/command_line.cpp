#include "client/cli/command_line.h"

#include <algorithm>
#include <iostream>

#include "client/cli/json.h"
#include "client/cli/suggest.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  troupe run --model DIR --prompt "a red circle above a blue square" --cfg 2 --pp 2 --patches 4
  troupe plan --model DIR --cfg 2 --pp 2 --height 512 --width 768
  troupe start --actors 4 --model DIR --detach
  troupe submit --prompt "a green star" --cfg 2 --pp 2 --output star.png
  troupe status; troupe jobs; troupe cancel 3; troupe stop
  troupe inspect star.png

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 or 143 after Ctrl-C or SIGTERM.
`troupe COMMAND --help` tells a command's options.)";

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.erase(text.find_last_not_of(" .") + 1);
  return text;
}

int report(const Error& error, int exit_code, bool json) {
  if (json) print_json({{"error", to_json(error)}});
  std::cerr << "troupe: " << one_line(error.what) << std::endl;
  return exit_code;
}

int usage(const std::string& command, const std::string& what) {
  std::cerr << "troupe: " << one_line(what) << " (see troupe "
            << (command.empty() ? "" : command + " ") << "--help)" << std::endl;
  return kUsage;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string guess = nearest(word, known);
  return guess.empty() ? "" : "; did you mean " + guess + "?";
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
  return "unknown option " + name + did_you_mean(name, known);
}

std::string unknown_verb_text(const std::string& word,
                              const std::vector<std::unique_ptr<Verb>>& verbs) {
  std::vector<std::string> known;
  for (const auto& verb : verbs)
    known.push_back(verb->app().get_name());
  return "unknown command " + word + did_you_mean(word, known);
}

int run_verb(Verb& verb) {
  try {
    return verb.run();
  } catch (const UsageError& error) {
    if (verb.json()) print_json({{"error", to_json(Error{"usage", error.what()})}});
    return usage(verb.app().get_name(), error.what());
  } catch (const CommandError& error) {
    return report(error.error, error.exit_code, verb.json());
  } catch (const std::bad_alloc&) {
    return report({"out_of_memory", "out of memory"}, kFailed, verb.json());
  } catch (const std::exception& error) {
    return report({"failed", error.what()}, kFailed, verb.json());
  }
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  CLI::App app("Troupe: diffusion transformers on a cluster of actors.", "troupe");
  app.footer(kExamples);
  app.set_version_flag("--version", "troupe " TROUPE_VERSION);
  app.require_subcommand(0, 1);
  app.allow_extras();
  const auto verbs = make_verbs(app);
  for (const auto& verb : verbs)
    verb->app().allow_extras();

  std::string command;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return kOk;
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << std::endl;
    return kOk;
  } catch (const CLI::ParseError& error) {
    for (const CLI::App* chosen : app.get_subcommands())
      command = chosen->get_name();
    return usage(command, error.what());
  }
  for (const auto& verb : verbs) {
    if (!verb->app().parsed()) continue;
    command = verb->app().get_name();
    const std::vector<std::string> extras = verb->app().remaining();
    if (!extras.empty()) return usage(command, unexpected_text(verb->app(), extras));
    if (!app.remaining().empty())
      return usage(command, unexpected_text(verb->app(), app.remaining()));
    return run_verb(*verb);
  }
  if (app.remaining().empty()) {
    std::cerr << app.help();
    return kUsage;
  }
  const std::string word = app.remaining().front();
  return usage(
      "", word[0] == '-' ? unexpected_text(app, app.remaining()) : unknown_verb_text(word, verbs));
}

}  // namespace troupe::cli
