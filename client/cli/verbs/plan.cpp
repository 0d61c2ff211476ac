#include "controller/plan/plan.h"

#include <iostream>

#include "client/cli/json.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace {

class PlanVerb : public Verb {
 public:
  explicit PlanVerb(CLI::App& parent)
      : Verb(parent, "plan",
             "Print mesh, groups, stages, patches and memory of a request, or why it is "
             "impossible") {
    add_request_options(*app_, request_);
    add_degree_options(*app_, request_);
    app_->footer(
        "Needs no cluster and loads no weights.\n\n"
        "Example:\n"
        "  troupe plan --model DIR --cfg 2 --pp 2 --patches 4 --height 512 --width 768");
  }

  int run() override {
    if (request_.model.empty()) throw UsageError("plan needs --model");
    if (request_.request.prompts.empty()) request_.request.prompts = {""};
    settle(request_);
    const wire::JobSpec job = client::to_wire(make_submission(request_));
    const plan::Plan plan = planned(job);
    if (json()) {
      print_json(plan::to_json(plan));
      return kOk;
    }
    const std::string text = plan::to_text(plan);
    std::cout << text << (text.empty() || text.back() != '\n' ? "\n" : "") << std::flush;
    return kOk;
  }

 private:
  /// What a controller would refuse, under the code that it would refuse it with.
  static plan::Plan planned(const wire::JobSpec& job) {
    try {
      return plan::make_plan(spec::read_model_spec(job.model), job.request, job.parallelism);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw CommandError(Error{"bad_request", error.what()});
    }
  }

  RequestOptions request_;
};

}  // namespace

std::unique_ptr<Verb> make_plan(CLI::App& parent) {
  return std::make_unique<PlanVerb>(parent);
}

}  // namespace troupe::cli
