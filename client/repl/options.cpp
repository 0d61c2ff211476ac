#include "client/repl/options.h"

#include <iostream>

#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/verb.h"
#include "client/repl/session.h"

namespace troupe::repl {

void run_shared(Session& session, const Command& command, const Words& words) {
  cli::Options options(command.summary, command.name);
  const auto verb = command.shared(options, cli::Where::console);
  if (parse(options, words, session.json())) verb->run_in_console(session, session.json());
}

FollowLine::FollowLine() {
  app.add_option("JOB", job, "The job, as `jobs` names it")->required();
  cli::add_result_options(app, results);
  app.get_option("--output")->default_str("");
}

bool parse(cli::Options& app, const Words& words, bool json) {
  if (app.parse(words) == cli::Options::Parsed::help) {
    if (json) {
      cli::print_json_line({{"help", app.help()}});
    } else {
      std::cout << app.help();
    }
    return false;
  }
  if (!app.remaining().empty())
    throw cli::UsageError(cli::unexpected_text(app.cli(), app.remaining()));
  return true;
}

std::vector<OptionShape> options_of(const std::string& command) {
  std::vector<OptionShape> shapes;
  const auto add = [&](cli::Options& app) {
    shapes.push_back({"--help", "", {}});
    shapes.push_back({"-h", "", {}});
    for (const auto& option : app.all())
      for (const std::string& name : option->names())
        shapes.push_back({name, option->value_name(), option->words()});
  };
  const Command* known = find_command(command);
  if (known != nullptr && known->shared) {
    cli::Options options;
    const auto verb = known->shared(options, cli::Where::console);
    add(options);
  } else if (command == "follow") {
    FollowLine follow;
    add(follow.app);
  }
  return shapes;
}

}  // namespace troupe::repl
