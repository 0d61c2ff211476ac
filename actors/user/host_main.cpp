#include "actors/user/host_main.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "actors/user/user_host.h"
#include "base/available_memory.h"
#include "base/error_text.h"
#include "base/xxh64.h"

namespace troupe::runtime {
namespace {

/// Fields between tabs, for the controller: a line per class and method and one that says that it
/// is all, or one that says what is wrong with the file.
int describe(const std::string& file) try {
  const Plugin plugin(file);
  std::printf("troupe-file\t%llu\n", static_cast<unsigned long long>(xxh64_of(file)));
  for (const auto& entry : plugin.describe().classes) {
    std::printf("troupe-class\t%s\t%s\t%llu\t%d\n", entry.name.c_str(), entry.arguments.c_str(),
                static_cast<unsigned long long>(entry.types), entry.needs_torch ? 1 : 0);
    for (const auto& method : entry.methods) {
      std::printf("troupe-method\t%s\t%s\t%s\n", method.name.c_str(), method.arguments.c_str(),
                  method.result.c_str());
    }
  }
  std::printf("troupe-end\n");
  std::fflush(stdout);
  return 0;
} catch (const std::exception& error) {
  std::string why = first_line(error.what());
  std::ranges::replace(why, '\t', ' ');
  std::printf("troupe-failure\t%s\n", why.c_str());
  std::fflush(stdout);
  return 1;
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
  app.add_option("--plugin", options.plugin);
  app.add_option("--listen", options.endpoint);
  app.add_option("--listen-blobs", options.blob_endpoint);
  app.add_flag("--insecure", options.insecure);
  app.add_option("--doing", options.doing);
  app.add_option("--parent", parent);
  CLI11_PARSE(app, argc, argv);
  begin_as_child(parent);
  options.token = take_secret("TROUPE_TOKEN");
  options.ticket = take_secret("TROUPE_TICKET");
  const std::string control_keys = take_secret("TROUPE_CONTROL_KEYS");
  const std::string door_keys = take_secret("TROUPE_DOOR_KEYS");
  const std::string who =
      file.empty() ? "actor " + std::to_string(options.id) : std::string("troupe-host");
  try {
    if (!file.empty()) return describe(file);
    options.incarnation = take_incarnation();
    if (!control_keys.empty())
      options.keys = control::client_keys_from(control_keys, "the node agent");
    if (!door_keys.empty()) options.door = control::door_from(door_keys, "the node agent");
    UserHost actor(options);
    leave(actor.run());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", who.c_str(), first_line(text_of(error)).c_str());
    leave(1);
  }
}

}  // namespace troupe::runtime
