#include "client/cli/verb.h"

namespace troupe::cli {

Verb::Verb(CLI::App& parent, const std::string& name, const std::string& description)
    : app_(parent.add_subcommand(name, description)) {
  app_->add_flag("--json", json_, "Print one JSON document on standard output");
}

std::vector<std::unique_ptr<Verb>> make_verbs(CLI::App& parent) {
  std::vector<std::unique_ptr<Verb>> verbs;
#ifdef TROUPE_WITH_CLUSTER
  verbs.push_back(make_run(parent));
  verbs.push_back(make_start(parent));
#endif
  verbs.push_back(make_status(parent));
  verbs.push_back(make_submit(parent));
  verbs.push_back(make_wait(parent));
  verbs.push_back(make_jobs(parent));
  verbs.push_back(make_cancel(parent));
  verbs.push_back(make_stop(parent));
#ifdef TROUPE_WITH_PLAN
  verbs.push_back(make_plan(parent));
#endif
  verbs.push_back(make_inspect(parent));
  return verbs;
}

}  // namespace troupe::cli
