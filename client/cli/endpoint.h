#pragma once
#include <string>

#include "client/cli/options.h"
#include "client/own_cluster.h"
#include "troupe/client.h"
#include "troupe/inspect.h"

namespace troupe::cli {

/// A controller as the command line names it.
struct Target {
  std::string endpoint;  // as typed; see checked_endpoint
  std::string keys;      // folder; empty = none
};

/// `--connect ENDPOINT`, else TROUPE_ADDRESS, else the default; and `--keys DIR`, else TROUPE_KEYS.
void add_connect_option(Options& app, Target& target);
/// `--keys DIR`, else TROUPE_KEYS, alone.
void add_keys_option(Options& app, std::string& keys, const std::string& help);

class SignalWatch;

/// Connects. Throws UsageError if the target is no endpoint, CommandError if no controller lets us
/// in. `signals`: those that are caught here and end the attempt; without them a signal ends the
/// process.
Client connect(const Target& target);
Client connect(const Target& target, const SignalWatch& signals);
Inspector connect_inspector(const Target& target);

/// Returns client::full_endpoint of `text`. Throws UsageError, which names `option`, if it is no
/// endpoint.
std::string checked_endpoint(const std::string& text, const std::string& option = "--connect");

}  // namespace troupe::cli
