#pragma once
#include <string>
#include <vector>

#include "client/cli/follow.h"
#include "client/cli/options.h"
#include "client/cli/request_options.h"
#include "client/repl/words.h"

namespace troupe::repl {

/// The options of `submit` and of `follow`, as those of the verbs of the same kind.
struct SubmitLine {
  cli::RequestOptions request;
  cli::ResultOptions results;
  bool follows = false;
  cli::Options app{
      "Hand a job in. It goes on when the console is left; --follow or --output waits.", "submit"};
  SubmitLine();
};

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
