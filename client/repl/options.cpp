#include "client/repl/options.h"

#include <iostream>

#include "client/cli/checks.h"
#include "client/cli/help_format.h"
#include "client/cli/json.h"
#include "client/cli/parse_errors.h"
#include "client/cli/verb.h"

namespace troupe::repl {

SubmitLine::SubmitLine() {
  app.formatter(cli::help_format());
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
  app.formatter(cli::help_format());
  app.add_option("JOB", job, "The job, as `jobs` names it")->required();
  cli::add_result_options(app, results);
  app.get_option("--output")->default_str("");
}

bool parse(CLI::App& app, const Words& words, bool json) {
  app.allow_extras();
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    if (json) {
      cli::print_json_line({{"help", app.help()}});
    } else {
      std::cout << app.help();
    }
    return false;
  } catch (const CLI::ParseError& error) {
    throw cli::UsageError(cli::parse_error_text(error.what()));
  }
  if (!app.remaining().empty()) throw cli::UsageError(cli::unexpected_text(app, app.remaining()));
  return true;
}

std::vector<OptionShape> options_of(const std::string& command) {
  std::vector<OptionShape> shapes;
  const auto add = [&](CLI::App& app) {
    for (CLI::Option* option : app.get_options()) {
      const bool flag = option->get_items_expected_max() == 0;
      std::vector<std::string> names;
      for (const std::string& name : option->get_lnames())
        names.push_back("--" + name);
      for (const std::string& name : option->get_snames())
        names.push_back("-" + name);
      for (const std::string& name : names)
        shapes.push_back({name, flag ? "" : option->get_type_name(), cli::words_of(*option)});
    }
  };
  SubmitLine submit;
  FollowLine follow;
  if (command == "submit") add(submit.app);
  if (command == "follow") add(follow.app);
  return shapes;
}

}  // namespace troupe::repl
