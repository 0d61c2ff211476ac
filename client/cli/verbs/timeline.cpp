#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"
#include "troupe/inspect.h"

namespace troupe::cli {
namespace {

class TimelineVerb : public SharedVerb {
 public:
  TimelineVerb(Options& options, Where where) : SharedVerb(options, where) {
    app_->add_option("ID", id_, "The job, as `troupe jobs` names it, or all")->kind(ValueKind::job);
    app_->add_option("-o,--output", output_,
                     "Trace file, replaced if it is there; - = standard output")
        ->check(not_empty())
        ->type_name("FILE.json")
        ->capture_default_str();
    add_connect();
    set_footer(
        "A row for each actor, a slice for each micro-step with its waits inside, an arrow for "
        "each "
        "tensor. Open it "
        "at https://ui.perfetto.dev or chrome://tracing. A job that runs is shown as far as it is.",
        {"troupe timeline 3 -o trace.json"}, "observability.md#time-lines");
  }

 protected:
  int run_on(Connections& at) override {
    const std::uint64_t job = id_ == "all" ? 0 : checked_job_id("timeline", id_);
    const bool to_file = output_ != "-";
    if (!to_file && json()) throw UsageError("--output - and --json both want standard output");
    if (to_file) check_writable("--output", output_);
    const std::string trace = take(at.inspector().timeline(job));
    if (!to_file) {
      std::cout << trace;
      return kOk;
    }
    write_file(output_, trace);
    if (json()) {
      print({{"job", job}, {"output", output_}, {"bytes", trace.size()}});
    } else {
      std::cout << output_ << "\n";
    }
    return kOk;
  }

 private:
  std::string id_;
  std::string output_ = "trace.json";
};

}  // namespace

std::unique_ptr<SharedVerb> make_timeline(Options& options, Where where) {
  return std::make_unique<TimelineVerb>(options, where);
}

}  // namespace troupe::cli
