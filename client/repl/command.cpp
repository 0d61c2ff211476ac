#include "client/repl/command.h"

#include <algorithm>
#include <iostream>

#include "client/cli/json.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "client/repl/session.h"

namespace troupe::repl {
namespace {

std::string usage_of(const Command& command) {
  return command.name + (command.arguments.empty() ? "" : " " + command.arguments);
}

nlohmann::json described(const Command& command) {
  return {{"name", command.name}, {"arguments", command.arguments}, {"summary", command.summary}};
}

}  // namespace

const std::vector<Command>& all_commands() {
  static const std::vector<Command> kCommands = [] {
    auto commands = command_table();
    std::erase_if(commands, [](const Command& command) { return !command.in_console(); });
    return commands;
  }();
  return kCommands;
}

const Command* find_command(const std::string& name) {
  const auto& commands = all_commands();
  const auto found = std::ranges::find_if(commands, [&](const Command& command) {
    return command.name == name || std::ranges::count(command.aliases, name) > 0;
  });
  return found == commands.end() ? nullptr : &*found;
}

void help(Session& session, const Words& words) {
  if (!words.empty()) {
    const Command* command = find_command(words[0]);
    if (!command) throw cli::UsageError("unknown command " + words[0] + "; `help` lists them");
    if (session.json()) {
      auto document = described(*command);
      document["details"] = command->details;
      return cli::print_json_line(document);
    }
    std::cout << usage_of(*command) << "\n" << command->summary << "\n";
    if (!command->details.empty()) std::cout << "\n" << command->details << "\n";
    return;
  }
  if (session.json()) {
    auto list = nlohmann::json::array();
    for (const Command& command : all_commands())
      list.push_back(described(command));
    return cli::print_json_line({{"commands", list}});
  }
  std::vector<cli::Row> rows;
  for (const Command& command : all_commands())
    rows.push_back({usage_of(command), command.summary});
  std::cout << cli::table({"COMMAND", "WHAT IT DOES"}, rows, cli::output_width());
  std::cout
      << "\nSeveral commands on a line are parted by ;. `help COMMAND` says more. Connected to "
      << session.endpoint() << "\n";
}

void quit(Session& session, const Words&) {
  session.quit();
}

}  // namespace troupe::repl
