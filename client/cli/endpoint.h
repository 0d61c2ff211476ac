#pragma once
#include <string>

namespace CLI {
class App;
}

namespace troupe::cli {

/// The folder of this user's own sockets and logs: $XDG_RUNTIME_DIR/troupe, else /tmp/troupe-UID.
std::string runtime_folder();

/// Makes the runtime folder with mode 0700. Throws std::runtime_error when it belongs to somebody
/// else or others may enter it.
std::string make_runtime_folder();

/// Where `troupe start` listens and the others connect when nothing is said: ipc in the runtime
/// folder.
std::string default_endpoint();

/// `--connect ENDPOINT`, else TROUPE_ADDRESS, else the default.
void add_connect_option(CLI::App& app, std::string& endpoint);

/// `host:port` becomes `tcp://host:port`; the rest stays. Throws UsageError unless ipc:// or
/// tcp://.
std::string checked_endpoint(const std::string& text);

}  // namespace troupe::cli
