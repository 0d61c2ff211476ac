#pragma once
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <utility>

#include "client/cli/options.h"

/// The command line of a program that is no `troupe`: a benchmark or a tool of the tests.
namespace troupe::bench {

using cli::not_empty;
using cli::number;
using cli::number_above;
using cli::one_of;
using cli::whole;

/// main() of such a program. Parses into what `app` was given, then runs `work`, whose answer is
/// the exit code. --help prints the options and exits with 0. A command line that makes no sense
/// exits with 2, an exception of `work` with 1, each with one line on standard error.
template <class Work>
int run_program(CLI::App& app, int argc, const char* const* argv, Work&& work) {
  const auto say = [&app](const std::string& what, const std::string& more) {
    std::cerr << app.get_name() << ": " << cli::one_line(what) << more << std::endl;
  };
  const auto wrong = [&](const std::string& what) {
    say(what, " (see " + app.get_name() + " --help)");
    return 2;
  };
  app.formatter(cli::help_format());
  app.allow_extras();
  try {
    app.parse(argc, argv);
    if (const auto why = cli::unexpected_text(app, app.remaining()); !why.empty())
      return wrong(why);
    return std::forward<Work>(work)();
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    return 0;
  } catch (const CLI::ParseError& error) {
    return wrong(cli::parse_error_text(error.what()));
  } catch (const std::exception& error) {
    say(error.what(), "");
    return 1;
  }
}

}  // namespace troupe::bench
