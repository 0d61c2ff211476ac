#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class CancelVerb : public Verb {
 public:
  explicit CancelVerb(CLI::App& parent)
      : Verb(parent, "cancel", "End a job at its next micro-step") {
    app_->add_option("ID", job_, "The job, as `troupe jobs` names it");
    add_connect_option(*app_, endpoint_);
  }

  int run() override {
    if (app_->count("ID") == 0) throw UsageError("cancel needs a job's ID");
    Client client = take(Client::connect(checked_endpoint(endpoint_)));
    const std::string note = take(client.cancel(job_));
    if (json()) {
      print_json({{"job", job_}, {"note", note}});
    } else {
      std::cout << "job " << job_ << ": " << (note.empty() ? "cancelled" : note) << std::endl;
    }
    return kOk;
  }

 private:
  std::uint64_t job_ = 0;
  std::string endpoint_;
};

}  // namespace

std::unique_ptr<Verb> make_cancel(CLI::App& parent) {
  return std::make_unique<CancelVerb>(parent);
}

}  // namespace troupe::cli
