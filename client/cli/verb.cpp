#include "client/cli/verb.h"

#include <optional>
#include "base/numbers.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"

namespace troupe::cli {

Verb::Verb(Options& options, Where where) : app_(&options) {
  if (where == Where::shell)
    app_->add_flag("--json", json_, "Print one JSON document on standard output");
  else
    app_->refuse("--json", "`troupe repl --json` says so for all commands");
}

Verb::Verb(Options& options, const std::string& why) : app_(&options) {
  app_->refuse("--json", why);
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

namespace {

class OwnConnections : public Connections {
 public:
  explicit OwnConnections(const Target& target) : target_(target) {}
  Client& client() override {
    if (!client_) client_ = signals_ ? connect(target_, *signals_) : connect(target_);
    return *client_;
  }
  Inspector& inspector() override {
    if (!inspector_) inspector_ = connect_inspector(target_);
    return *inspector_;
  }
  const SignalWatch& signals() override {
    if (!signals_) signals_.emplace();
    return *signals_;
  }

 private:
  const Target& target_;
  std::optional<SignalWatch> signals_;
  std::optional<Client> client_;
  std::optional<Inspector> inspector_;
};

}  // namespace

int SharedVerb::run() {
  OwnConnections own(target_);
  return run_on(own);
}

int SharedVerb::run_in_console(Connections& at, bool json) {
  json_ = json;
  check();
  return run_on(at);
}

void SharedVerb::add_connect() {
  if (!in_console()) return add_connect_option(*app_, target_);
  for (const char* option : {"--connect", "--keys"})
    app_->refuse(option, "the console is connected; `troupe repl` takes it");
}

void SharedVerb::check_target() const {
  checked_endpoint(target_.endpoint);
}

Report SharedVerb::report() const {
  if (!json_) return Report::text;
  return in_console() ? Report::json_line : Report::json;
}

void SharedVerb::print(const nlohmann::json& document) const {
  in_console() ? print_json_line(document) : print_json(document);
}

}  // namespace troupe::cli
