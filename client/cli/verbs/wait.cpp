#include <chrono>
#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/follow.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class WaitVerb : public Verb {
 public:
  explicit WaitVerb(CLI::App& parent)
      : Verb(parent, "wait",
             "Follow a job that was handed in with --detach, and write its pictures") {
    app_->add_option("ID", id_, "The job, as `troupe submit --detach` and `troupe jobs` name it");
    add_connect_option(*app_, target_);
    add_result_options(*app_, results_);
    set_footer(
        "--save-latents needs a job that was handed in with it. Ctrl-C and --timeout leave the job "
        "alone.",
        {"troupe wait 3 --output dog.png"}, "commands.md#wait");
  }

  int run() override {
    const std::uint64_t job = checked_job_id("wait", id_);
    checked_endpoint(target_.endpoint);
    check_outputs(results_, 1);
    results_.cancels = false;
    const SignalWatch signals;
    Client client = connect(target_);
    return follow_job(
        client, [&](const Client::OnProgress&) { return job; }, results_,
        json() ? Report::json : Report::text, signals);
  }

 private:
  std::string id_;
  Target target_;
  ResultOptions results_;
};

}  // namespace

std::unique_ptr<Verb> make_wait(CLI::App& parent) {
  return std::make_unique<WaitVerb>(parent);
}

}  // namespace troupe::cli
