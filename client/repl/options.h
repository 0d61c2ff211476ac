#pragma once
#include <string>
#include <vector>

#include "client/cli/follow.h"
#include "client/cli/options.h"
#include "client/repl/command.h"

namespace troupe::repl {

/// An option, for completion.
struct OptionShape {
  std::string name;                // "--prompt"
  cli::ValueKind kind = cli::ValueKind::none;
  std::string ending;              // of a file
  std::vector<std::string> words;  // all words that the value may be
};
std::vector<OptionShape> options_of(const Command& command);

}  // namespace troupe::repl
