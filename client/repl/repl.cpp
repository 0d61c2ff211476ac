#include "client/repl/repl.h"

#include <unistd.h>

#include <csignal>
#include <iostream>
#include <istream>

#include "client/cli/verb.h"
#include "client/repl/completion.h"
#include "client/repl/line_editor.h"
#include "client/repl/session.h"
#include "client/repl/words.h"

namespace troupe::repl {
namespace {

/// True when every command of the text did what it should. Leaves at quit and at a signal.
bool run_all(Session& session, const std::string& text) {
  bool good = true;
  try {
    for (const Words& words : split_commands(text)) {
      if (!session.run(words)) good = false;
      if (session.quits() || session.caught() != 0) break;
    }
  } catch (const LineError& error) {
    session.complain(std::string(error.what()));
    good = false;
  }
  return good;
}

int exit_code(const Session& session, bool good) {
  if (session.caught() != 0) return 128 + session.caught();
  return good ? cli::kOk : cli::kFailed;
}

#ifdef TROUPE_WITH_LIBEDIT
std::vector<std::string> words_for(Session& session, Argument argument, const Words& before) {
  switch (argument) {
    case Argument::job:
      return session.job_ids();
    case Argument::actor:
      return session.actor_ids();
    case Argument::speaker: {
      auto ids = session.actor_ids();
      ids.push_back("controller");
      return ids;
    }
    case Argument::fault:
      return fault_names();
    case Argument::hold_phase:
      return hold_phases();
    case Argument::command: {
      std::vector<std::string> names;
      for (const Command& command : all_commands())
        names.push_back(command.name);
      return names;
    }
    case Argument::tensor:
      return session.tensor_names(before[1], before[2]);
    case Argument::user_actor:
      return session.user_actors();
    case Argument::method:
      return session.methods(before.back());
    default:
      return {};
  }
}
#endif

}  // namespace

int run_commands(const cli::Target& target, const std::string& commands, bool json) {
  Session session(target, json);
  const bool good = run_all(session, commands);
  return exit_code(session, good);
}

int run_script(const cli::Target& target, std::istream& script, bool json) {
  Session session(target, json);
  bool good = true;
  std::string text;
  for (std::string line; std::getline(script, line);) {
    text += line + "\n";
    if (is_open(text)) continue;
    good = run_all(session, text) && good;
    text.clear();
    if (session.quits() || session.caught() != 0) break;
  }
  if (!text.empty()) good = run_all(session, text) && good;
  return exit_code(session, good);
}

#ifdef TROUPE_WITH_LIBEDIT
int run_console(const cli::Target& target) {
  Session session(target);
  session.use_pager();
  std::string text;  // a command's lines so far
  LineEditor editor(history_file(), [&](const std::string& before) {
    return complete(
        text.empty() ? before : text + "\n" + before, all_commands(),
        [&](Argument argument, const Words& words) { return words_for(session, argument, words); });
  });
  std::cout << "troupe " TROUPE_VERSION " at " << target.endpoint
            << "; `help` lists the commands, Ctrl-D leaves" << std::endl;
  while (!session.quits()) {
    const auto line = editor.read(text.empty() ? "troupe> " : "      > ");
    if (line.outcome == LineEditor::Outcome::interrupted) {
      text.clear();
      continue;
    }
    if (line.outcome == LineEditor::Outcome::end) {
      std::cout << std::endl;
      break;
    }
    text += (text.empty() ? "" : "\n") + line.text;
    if (is_open(text)) continue;
    if (text.find_first_not_of(" \t") != std::string::npos) editor.remember(text);
    run_all(session, text);
    text.clear();
    // Ctrl-C ends a command, the others the console.
    if (session.caught() != 0 && session.caught() != SIGINT) return 128 + session.caught();
  }
  return cli::kOk;
}
#else
int run_console(const cli::Target& target) {
  return run_script(target, std::cin, false);
}
#endif

}  // namespace troupe::repl

namespace troupe::cli {
namespace {

class ReplVerb : public Verb {
 public:
  explicit ReplVerb(Options& options) : Verb(options) {
    app_->add_option("ENDPOINT", place_, "Where the controller listens; as --connect");
    add_connect_option(*app_, target_);
    app_->add_option("-c", commands_, "Run these commands, parted by ;, and leave")
        ->type_name("COMMANDS");
    set_footer(
        "Commands come from the terminal, from -c, or from standard input when that is no "
        "terminal. Then the exit code is 1 when one failed, and with --json each prints one "
        "document on one line. `help` lists them.",
        {"troupe repl", "troupe repl -c \"actors; jobs\"",
         "troupe repl -c \"pause 3; step 3; tensors 0 3; resume 3\""},
        "repl.md");
  }

  void check() override {
    if (!place_.empty()) refuse_beside(*app_, "ENDPOINT", {"--connect"}, ", which is the same");
  }

  int run() override {
    target_.endpoint =
        place_.empty() ? checked_endpoint(target_.endpoint) : checked_endpoint(place_, "ENDPOINT");
    if (app_->count("-c") > 0) return repl::run_commands(target_, commands_, json());
    if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0)
      return repl::run_script(target_, std::cin, json());
    if (json()) throw UsageError("--json goes with -c, or with commands from standard input");
    return repl::run_console(target_);
  }

 private:
  std::string place_;
  Target target_;
  std::string commands_;
};

}  // namespace

std::unique_ptr<Verb> make_repl(Options& options) {
  return std::make_unique<ReplVerb>(options);
}

}  // namespace troupe::cli
