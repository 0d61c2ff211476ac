#include "client/own_cluster.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "base/files.h"
#include "base/text.h"
#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"

namespace troupe::client {
namespace {

constexpr std::size_t kMostDefaults = std::size_t{1} << 20;

/// Returns the value of an environment variable, "" if it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns the text of the file of defaults. An error names TROUPE_CONFIG where that names the
/// file.
std::string defaults_text(const std::string& path) {
  try {
    return read_file(path, kMostDefaults);
  } catch (const std::runtime_error& error) {
    if (variable("TROUPE_CONFIG") != path) throw;
    throw std::runtime_error("TROUPE_CONFIG " + without_rooms(error.what()));
  }
}

}  // namespace

std::string default_endpoint() {
  return "ipc://" + control::runtime_folder() + "/control.sock";
}

std::string full_endpoint(const std::string& text) {
  if (text.empty()) return default_endpoint();
  const bool schemed = text.starts_with("ipc://") || text.starts_with("tcp://");
  if (schemed && text.size() == 6) throw std::runtime_error("\"" + text + "\": nothing after ://");
  const bool bare = text.find("://") == std::string::npos && text.find(':') != std::string::npos &&
                    text[0] != '/';
  if (!schemed && !bare) {
    throw std::runtime_error(
        "\"" + text + "\": neither ipc://PATH nor tcp://HOST:PORT" +
        (text.find_first_of(":/") == std::string::npos ? " (a port is missing)" : ""));
  }
  const std::string endpoint = schemed ? text : "tcp://" + text;
  control::parse_endpoint(endpoint);
  return endpoint;
}

std::string defaults_file() {
  namespace fs = std::filesystem;
  if (const char* named = std::getenv("TROUPE_CONFIG")) return named;
  fs::path folder = variable("XDG_CONFIG_HOME");
  if (folder.empty() && !variable("HOME").empty()) folder = fs::path(variable("HOME")) / ".config";
  if (!folder.is_absolute()) return "";
  const auto path = folder / "troupe/config.toml";
  std::error_code ignored;
  return fs::exists(path, ignored) ? path.string() : "";
}

std::vector<Default> read_defaults(const std::string& path) {
  std::vector<Default> defaults;
  try {
    std::istringstream text(defaults_text(path));
    for (CLI::ConfigItem& item : CLI::ConfigBase().from_config(text)) {
      if (item.name == "++" || item.name == "--") continue;  // a section begins, or ends
      std::replace(item.name.begin(), item.name.end(), '_', '-');
      defaults.push_back({CLI::detail::join(item.parents, "."), item.name, std::move(item.inputs)});
    }
  } catch (const CLI::Error& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
  return defaults;
}

Result<Place> found_place(const std::string& endpoint, const std::string& keys) {
  Place place{endpoint.empty() ? variable("TROUPE_ADDRESS") : endpoint,
              keys.empty() ? variable("TROUPE_KEYS") : keys};
  try {
    const std::string path = place.endpoint.empty() ? defaults_file() : "";
    for (const auto& [section, name, values] :
         path.empty() ? std::vector<Default>{} : read_defaults(path)) {
      if (!section.empty() || values.empty()) continue;
      if (name == "connect") place.endpoint = values.front();
      if (name == "keys" && place.keys.empty()) place.keys = values.front();
    }
    place.endpoint = full_endpoint(place.endpoint);
  } catch (const std::exception& error) {
    return Error{ErrorCode::bad_request, std::string("[client] ") + error.what()};
  }
  return place;
}

}  // namespace troupe::client
