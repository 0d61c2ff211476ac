#include "client/repl/options.h"

#include "client/cli/options.h"
#include "client/cli/verb.h"

namespace troupe::repl {

std::vector<OptionShape> options_of(const Command& command) {
  std::vector<OptionShape> shapes;
  if (!command.shared) return shapes;
  cli::Options options;
  const auto verb = command.shared(options, cli::Where::console);
  shapes.push_back({"--help", cli::ValueKind::none, "", {}});
  shapes.push_back({"-h", cli::ValueKind::none, "", {}});
  for (const auto& option : options.all())
    for (const std::string& name : option->names())
      shapes.push_back({name, option->kind(), option->file_ending(), option->words()});
  return shapes;
}

}  // namespace troupe::repl
