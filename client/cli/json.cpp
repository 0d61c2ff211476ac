#include "client/cli/json.h"

#include <iostream>

#include "client/cli/options.h"
#include "client/cli/terminal.h"

namespace troupe::cli {
namespace {

/// The document with \u escapes for what a terminal would obey: the same values to who reads JSON.
std::string json_text(const nlohmann::json& document, int indent) {
  const auto text = document.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
  if (printable(text) == text) return text;
  std::string out;
  for (std::size_t i = 0, bytes = 1; i < text.size(); i += bytes) {
    bytes = 1;
    while (i + bytes < text.size() && (static_cast<unsigned char>(text[i + bytes]) >> 6U) == 2)
      ++bytes;
    const std::string character = text.substr(i, bytes);
    if (printable(character) == character) {
      out += character;
      continue;
    }
    const nlohmann::json escaped = character;
    const auto quoted = escaped.dump(-1, ' ', true);  // DEL alone is ASCII
    out += bytes == 1 ? "\\u007f" : quoted.substr(1, quoted.size() - 2);
  }
  return out;
}

}  // namespace

nlohmann::json to_json(const Error& error) {
  nlohmann::json document = {{"code", to_string(error.code)}, {"message", one_line(error.what)}};
  if (!error.field.empty()) document["field"] = error.field;
  return document;
}

nlohmann::json to_json(const ClusterInfo& cluster) {
  nlohmann::json actors = nlohmann::json::array();
  for (const ActorInfo& actor : cluster.actors)
    actors.push_back(to_json(actor));
  Hosts hosts;
  add_hosts(cluster, hosts);
  return {{"version", cluster.version},
          {"endpoint", cluster.endpoint},
          {"host", cluster.host},
          {"pid", cluster.pid},
          {"model", cluster.model},
          {"uptime_seconds", cluster.uptime_seconds},
          {"hosts", troupe::to_json(hosts)},
          {"actors", actors},
          {"jobs",
           {{"queued", cluster.jobs_queued},
            {"running", cluster.jobs_running},
            {"ended", cluster.jobs_ended}}},
          {"recent_failures", cluster.recent_failures}};
}

void print_json_line(const nlohmann::json& document) {
  std::cout << json_text(document, -1) << std::endl;
}

void print_json(const nlohmann::json& document) {
  std::cout << json_text(document, 2) << std::endl;
}

}  // namespace troupe::cli
