#include "client/repl/repl.h"

#include <unistd.h>

#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/verb.h"

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
