#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"
#include "troupe/inspect.h"

namespace troupe::cli {
namespace {

class TimelineVerb : public Verb {
 public:
  explicit TimelineVerb(Options& parent)
      : Verb(parent, "timeline", "Write what ran when, for Perfetto") {
    app_->add_option("ID", id_, "The job, as `troupe jobs` names it, or all");
    app_->add_option("-o,--output", output_,
                     "Trace file, replaced if it is there; - = standard output")
        ->check(not_empty())
        ->type_name("FILE.json")
        ->capture_default_str();
    add_connect_option(*app_, target_);
    set_footer(
        "A row for each actor, a slice for each micro-step with its waits inside, an arrow for "
        "each "
        "tensor. Open it "
        "at https://ui.perfetto.dev or chrome://tracing. A job that runs is shown as far as it is.",
        {"troupe timeline 3 -o trace.json"}, "observability.md#time-lines");
  }

  int run() override {
    const std::uint64_t job = id_ == "all" ? 0 : checked_job_id("timeline", id_);
    const bool to_file = output_ != "-";
    if (!to_file && json()) throw UsageError("--output - and --json both want standard output");
    if (to_file) check_writable("--output", output_);
    Inspector inspector = connect_inspector(target_);
    const std::string trace = take(inspector.timeline(job));
    if (!to_file) {
      std::cout << trace;
      return kOk;
    }
    write_file(output_, trace);
    if (json()) {
      print_json({{"job", job}, {"output", output_}, {"bytes", trace.size()}});
    } else {
      std::cout << output_ << "\n";
    }
    return kOk;
  }

 private:
  std::string id_;
  std::string output_ = "trace.json";
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_timeline(Options& parent) {
  return std::make_unique<TimelineVerb>(parent);
}

}  // namespace troupe::cli
