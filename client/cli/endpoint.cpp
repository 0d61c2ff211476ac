#include "client/cli/endpoint.h"

#include "client/cli/signals.h"
#include "client/cli/verb.h"

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

}  // namespace troupe::cli
