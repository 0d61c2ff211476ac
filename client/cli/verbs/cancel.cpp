#include <iostream>

#include "base/format.h"
#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class CancelVerb : public Verb {
 public:
  explicit CancelVerb(Options& parent)
      : Verb(parent, "cancel", "End a job at its next micro-step") {
    app_->add_option("ID", id_, "The job, as `troupe jobs` names it");
    add_connect_option(*app_, target_);
    set_footer("What was issued before still runs to its end: some micro-steps at most.",
               {"troupe cancel 3"}, "commands.md#cancel");
  }

  int run() override {
    const std::uint64_t job = checked_job_id("cancel", id_);
    Client client = connect(target_);
    const std::string note = take(client.cancel(job));
    if (json()) {
      print_json({{"job", job}, {"note", note}});
    } else {
      const std::string name = fmt::format("job {}", job);
      if (note.rfind(name + " ", 0) != 0) std::cout << name << ": ";
      std::cout << (note.empty() ? "cancelled" : one_line(note)) << std::endl;
    }
    return kOk;
  }

 private:
  std::string id_;
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_cancel(Options& parent) {
  return std::make_unique<CancelVerb>(parent);
}

}  // namespace troupe::cli
