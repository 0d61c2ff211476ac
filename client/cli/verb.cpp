#include "client/cli/verb.h"

#include "base/numbers.h"

namespace troupe::cli {

Verb::Verb(Options& parent, const std::string& name, const std::string& description)
    : app_(&parent.add_command(name, description)) {
  app_->add_flag("--json", json_, "Print one JSON document on standard output");
}

void Verb::set_footer(const std::string& text, const std::vector<std::string>& examples,
                      const std::string& page) {
  std::string footer = text + (text.empty() ? "" : "\n\n") + "Examples:\n";
  for (const auto& example : examples)
    footer += "  " + example + "\n";
  app_->set_footer(footer + "\nMore: docs/" + page);
}

std::uint64_t checked_job_id(const std::string& verb, const std::string& text) {
  if (text.empty()) throw UsageError(verb + " needs a job's ID");
  const auto job = parse_number<std::uint64_t>(text).value_or(0);
  if (job == 0)
    throw UsageError(verb + " \"" + text +
                     "\": ID is a number from 1 on, as `troupe jobs` shows it");
  return job;
}

std::vector<std::unique_ptr<Verb>> make_verbs(Options& parent) {
  std::vector<std::unique_ptr<Verb>> verbs;
#ifdef TROUPE_WITH_CLUSTER
  verbs.push_back(make_run(parent));
  verbs.push_back(make_start(parent));
  verbs.push_back(make_join(parent));
#endif
  verbs.push_back(make_serve(parent));
  verbs.push_back(make_status(parent));
  verbs.push_back(make_top(parent));
  verbs.push_back(make_submit(parent));
  verbs.push_back(make_wait(parent));
  verbs.push_back(make_jobs(parent));
  verbs.push_back(make_cancel(parent));
  verbs.push_back(make_drain(parent));
  verbs.push_back(make_stop(parent));
  verbs.push_back(make_repl(parent));
  verbs.push_back(make_logs(parent));
  verbs.push_back(make_timeline(parent));
#ifdef TROUPE_WITH_PLAN
  verbs.push_back(make_plan(parent));
#endif
  verbs.push_back(make_inspect(parent));
  verbs.push_back(make_keys(parent));
  verbs.push_back(make_completion(parent));
  verbs.push_back(make_man(parent));
  return verbs;
}

}  // namespace troupe::cli
