#include "client/repl/options.h"

#include <iostream>

#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/verb.h"

namespace troupe::repl {

SubmitLine::SubmitLine() {
  cli::add_request_options(app, request);
  cli::add_degree_options(app, request);
  cli::add_queue_options(app, request);
  cli::add_elastic_option(app, request);
  cli::add_result_options(app, results);
  cli::add_preview_options(app, results);
  app.add_flag("--follow", follows, "Show progress until the job ends");
  app.get_option("--output")->default_str("");  // without it nothing is written here
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
  SubmitLine submit;
  FollowLine follow;
  if (command == "submit") add(submit.app);
  if (command == "follow") add(follow.app);
  return shapes;
}

}  // namespace troupe::repl
