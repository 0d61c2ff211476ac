#include <iostream>

#include "base/format.h"
#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class CancelVerb : public SharedVerb {
 public:
  CancelVerb(Options& options, Where where) : SharedVerb(options, where) {
    app_->add_option("ID", id_, "The job, as `troupe jobs` names it")->kind(ValueKind::job);
    add_connect();
    set_footer("What was issued before still runs to its end: some micro-steps at most.",
               {"troupe cancel 3"}, "commands.md#cancel");
  }

 protected:
  int run_on(Connections& at) override {
    const std::uint64_t job = checked_job_id("cancel", id_);
    const std::string note = take(at.client().cancel(job));
    if (json()) {
      print({{"job", job}, {"note", note}});
    } else {
      const std::string name = fmt::format("job {}", job);
      if (note.rfind(name + " ", 0) != 0) std::cout << name << ": ";
      std::cout << (note.empty() ? "cancelled" : one_line(note)) << std::endl;
    }
    return kOk;
  }

 private:
  std::string id_;
};

}  // namespace

std::unique_ptr<SharedVerb> make_cancel(Options& options, Where where) {
  return std::make_unique<CancelVerb>(options, where);
}

}  // namespace troupe::cli
