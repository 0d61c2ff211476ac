#pragma once
#include <string>
#include <vector>

#include "troupe/result.h"

namespace troupe::client {

/// Returns the endpoint where `troupe start` listens and the others connect when no other is given:
/// ipc in the runtime folder.
std::string default_endpoint();

/// Returns the whole endpoint: `host:port` becomes `tcp://host:port`, "" the default; the rest
/// stays. Throws std::runtime_error, one line naming the text, if it is no endpoint.
std::string full_endpoint(const std::string& text);

/// The file of defaults: TROUPE_CONFIG, else `troupe/config.toml` in XDG_CONFIG_HOME or ~/.config;
/// "" where there is none.
std::string defaults_file();

/// A line of that file.
struct Default {
  std::string section;              // "" before the first
  std::string name;                 // of an option, without dashes in front: "max-batch"
  std::vector<std::string> values;  // as typed
  std::string place;                // the file and the line, as in "config.toml:3"
};
/// TOML as CLI11 reads it. Throws std::runtime_error naming the file.
std::vector<Default> read_defaults(const std::string& path);

/// A controller, and the folder of keys to show there ("" = none are named).
struct Place {
  std::string endpoint;
  std::string keys;
};
/// Finds the controller and keys for a program that names neither, as for a verb without options:
/// TROUPE_ADDRESS and TROUPE_KEYS, else `connect` and `keys` in the file of defaults before its
/// first section, else the default. With an endpoint the file is not read. Errors: bad_request.
Result<Place> found_place(const std::string& endpoint, const std::string& keys);

}  // namespace troupe::client
