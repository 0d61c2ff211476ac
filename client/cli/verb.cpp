#include "client/cli/verb.h"

#include <optional>

#include "base/numbers.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"
#include "transport/wire/request_rules.h"

namespace troupe::cli {
namespace {

constexpr std::chrono::seconds kConnectDeadline{5};

/// Returns the connection that opened, or throws CommandError; keys that cannot be used stand under
/// --keys.
template <class T>
T let_in(Result<T> opened, int exit_code = kFailed) {
  if (opened) return std::move(opened.value());
  const Error& error = opened.error();
  throw CommandError(Error{error.code, by_option(error.what, {{"keys", "--keys"}})}, exit_code);
}

}  // namespace

void add_connect_option(Options& app, Target& target) {
  app.add_option("--connect", target.endpoint,
                 "Where the controller listens: ipc://PATH, tcp://HOST:PORT or HOST:PORT "
                 "(default: this user's own cluster, " +
                     client::default_endpoint() + ")")
      ->check(not_empty())
      ->envname("TROUPE_ADDRESS")
      ->type_name("ENDPOINT");
  add_keys_option(app, target.keys,
                  "Folder with server.pub and client.key, for a tcp:// controller that asks for "
                  "keys (`troupe keys`; default: on a loopback address this user's own). none: "
                  "trust whoever listens there, as a cluster started with --insecure needs it");
}

void add_keys_option(Options& app, std::string& keys, const std::string& help) {
  app.add_option("--keys", keys, help)->envname("TROUPE_KEYS")->type_name("DIR");
}

std::string in_options(const std::string& text) {
  return wire::name_fields(text, wire::option_of);
}

Client connect(const Target& target) {
  return let_in(Client::connect(checked_endpoint(target.endpoint), kConnectDeadline, target.keys));
}

Client connect(const Target& target, const SignalWatch& signals) {
  auto client = Client::connect(checked_endpoint(target.endpoint), kConnectDeadline, target.keys,
                                signals.token());
  return let_in(std::move(client), signals.caught() ? signals.exit_code() : kFailed);
}

Inspector connect_inspector(const Target& target) {
  return let_in(
      Inspector::connect(checked_endpoint(target.endpoint), kConnectDeadline, target.keys));
}

std::string checked_endpoint(const std::string& text, const std::string& option) {
  try {
    return client::full_endpoint(text);
  } catch (const std::runtime_error& error) {
    throw UsageError(option + " " + one_line(error.what()));
  }
}

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
