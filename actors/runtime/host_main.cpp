#include "actors/runtime/host_main.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "actors/runtime/user_host.h"

namespace troupe::runtime {
namespace {

/// One line a class or method, fields between tabs: the controller reads them.
int describe(const std::string& file) {
  const Plugin plugin(file);
  for (const auto& entry : plugin.describe().classes) {
    std::printf("troupe-class\t%s\t%s\t%llu\t%d\n", entry.name.c_str(), entry.arguments.c_str(),
                static_cast<unsigned long long>(entry.types), entry.needs_torch ? 1 : 0);
    for (const auto& method : entry.methods) {
      std::printf("troupe-method\t%s\t%s\t%s\n", method.name.c_str(), method.arguments.c_str(),
                  method.result.c_str());
    }
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace

int host_main(int argc, char** argv) {
  CLI::App app{
      "troupe-host: one user's actor of a troupe cluster. Node agents start it; see "
      "docs/actors.md."};
  UserHostOptions options;
  std::string file;
  int parent = 0;
  bool host = false;
  app.add_flag("--host", host);  // how troupe-actor was told to come here
  auto* only_describe = app.add_option("--describe", file, "print what a plugin offers");
  app.add_option("--control", options.control_endpoint)->excludes(only_describe);
  app.add_option("--id", options.id);
  app.add_option("--incarnation", options.incarnation);
  app.add_option("--plugin", options.plugin);
  app.add_option("--listen", options.endpoint);
  app.add_option("--listen-blobs", options.blob_endpoint);
  app.add_flag("--insecure", options.insecure);
  app.add_option("--doing", options.doing);
  app.add_option("--parent", parent);
  CLI11_PARSE(app, argc, argv);
  begin_as_child(parent);
  const auto from_environment = [](const char* key) {
    const char* value = std::getenv(key);
    return std::string(value ? value : "");
  };
  options.token = from_environment("TROUPE_TOKEN");
  options.ticket = from_environment("TROUPE_TICKET");
  const std::string who =
      file.empty() ? "actor " + std::to_string(options.id) : std::string("troupe-host");
  try {
    if (!file.empty()) return describe(file);
    if (const auto keys = from_environment("TROUPE_CONTROL_KEYS"); !keys.empty())
      options.keys = control::client_keys_from(keys, "the node agent");
    for (const char* secret : {"TROUPE_TOKEN", "TROUPE_TICKET", "TROUPE_CONTROL_KEYS"})
      unsetenv(secret);
    UserHost actor(options);
    leave(actor.run());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    std::fprintf(stderr, "%s: %s\n", who.c_str(), text.substr(0, text.find('\n')).c_str());
    leave(1);
  }
}

}  // namespace troupe::runtime
