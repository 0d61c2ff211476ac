#pragma once
#include <string>
#include <vector>

#include "client/cli/follow.h"
#include "client/cli/options.h"
#include "client/repl/command.h"

namespace troupe::repl {

/// Runs a command of the shell in the console. Throws as the verb does.
void run_shared(Session& session, const Command& command, const Words& words);

/// The options of `follow`.
struct FollowLine {
  std::string job;
  cli::ResultOptions results;
  cli::Options app{
      "Show a job's progress until it ends, Ctrl-C comes or --timeout passes; with "
      "--output write its pictures.",
      "follow"};
  FollowLine();
};

/// Takes the words apart. False when help was asked for and printed, with `json` as {"help": TEXT}.
/// Throws cli::UsageError.
bool parse(cli::Options& app, const Words& words, bool json);

/// An option, for completion.
struct OptionShape {
  std::string name;                // "--prompt"
  std::string type;                // of its value, as the help names it: "FILE.png"; "" = a flag
  std::vector<std::string> words;  // all words that the value may be
};
std::vector<OptionShape> options_of(const std::string& command);

}  // namespace troupe::repl
