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

/// Returns a key of the file as option names are written: without quotes and spaces, with dashes.
std::string as_option_name(std::string key) {
  std::erase_if(key,
                [](char c) { return c == '"' || c == '\'' || c == ' ' || c == '\t' || c == '\r'; });
  std::ranges::replace(key, '_', '-');
  return key;
}

/// Returns the number of the line, from 1 on, where the name is set in the section; 0 if it stands
/// nowhere by itself. CLI11 does not say.
int line_of(const std::string& text, const std::string& section, const std::string& name) {
  const std::string wanted = section.empty() ? name : section + "." + name;
  std::string heading;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto key = as_option_name(line.substr(0, line.find_first_of("=#")));
    if (key.starts_with('[') && key.ends_with(']'))
      heading = key.substr(1, key.size() - 2) + ".";
    else if (heading + key == wanted)
      return number;
  }
  return 0;
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
  const std::string text = defaults_text(path);
  try {
    std::istringstream lines(text);
    for (CLI::ConfigItem& item : CLI::ConfigBase().from_config(lines)) {
      if (item.name == "++" || item.name == "--") continue;  // a section begins, or ends
      const std::string section = as_option_name(CLI::detail::join(item.parents, "."));
      const std::string name = as_option_name(item.name);
      const int line = line_of(text, section, name);
      defaults.push_back({section, name, std::move(item.inputs),
                          line == 0 ? path : path + ":" + std::to_string(line)});
    }
  } catch (const CLI::Error& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
  return defaults;
}

Result<Place> found_place(const std::string& endpoint, const std::string& keys) {
  Place place{endpoint, keys.empty() ? variable("TROUPE_KEYS") : keys};
  std::string from;  // where the endpoint stands
  if (place.endpoint.empty()) {
    place.endpoint = variable("TROUPE_ADDRESS");
    from = "TROUPE_ADDRESS: ";
  }
  try {
    const std::string path = place.endpoint.empty() ? defaults_file() : "";
    for (const auto& line : path.empty() ? std::vector<Default>{} : read_defaults(path)) {
      if (!line.section.empty() || line.values.empty()) continue;
      if (line.name == "connect") {
        place.endpoint = line.values.front();
        from = line.place + ": ";
      }
      if (line.name == "keys" && place.keys.empty()) place.keys = line.values.front();
    }
  } catch (const std::exception& error) {
    return Error{ErrorCode::bad_request, std::string("[client] ") + error.what()};
  }
  try {
    place.endpoint = full_endpoint(place.endpoint);
  } catch (const std::exception& error) {
    return Error{ErrorCode::bad_request, "[client] " + from + error.what()};
  }
  return place;
}

}  // namespace troupe::client
