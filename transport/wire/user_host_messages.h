#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/user_messages.h"

/// Users' actors on other hosts: what the controller asks of their node agents.
namespace troupe::wire {

/// controller → node agent: may these libraries be used on your host? Answered by PluginsChecked.
struct CheckPlugins {
  static constexpr Kind kKind = Kind::check_plugins;
  std::vector<std::string> files;  // as on the controller's host

  template <class Archive>
  void serialize(Archive& ar) {
    ar(files);
  }
};

/// What a library is on one host.
struct PluginReport {
  std::string file;            // that was opened there
  std::uint64_t contents = 0;  // XXH64 of its bytes
  ClassList classes;
  std::string failure;  // why it cannot be used, one line; "" = it can

  template <class Archive>
  void serialize(Archive& ar) {
    ar(file, contents, classes, failure);
  }
};

struct PluginsChecked {
  static constexpr Kind kKind = Kind::plugins_checked;
  std::vector<PluginReport> reports;  // one each, in the order asked

  template <class Archive>
  void serialize(Archive& ar) {
    ar(reports);
  }
};

/// controller → node agent: start the process of a user's actor on your host. Answered by
/// ProcessStarted or Failure. The controller is where the agent itself has reached it.
struct StartUserProcess {
  static constexpr Kind kKind = Kind::start_user_process;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::string plugin;  // as on the controller's host
  bool torch = false;
  std::string ticket;  // that callers must show
  std::string door;    // CURVE, of its own door, as text; "" = it asks for none
  std::vector<std::int32_t> gpus;
  std::string token;  // of the cluster
  std::string keys;   // CURVE, for the controller, as text; "" = it asks for none
  bool insecure = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, incarnation, plugin, torch, ticket, door, gpus, token, keys, insecure);
  }
};

/// controller → node agent: the process of this incarnation is killed, if it still lives.
struct EndUserProcess {
  static constexpr Kind kKind = Kind::end_user_process;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::string why = {};  // for its log; "" = nothing is said there

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, incarnation, why);
  }
};

/// Node agent → controller: a user's actor's process that it started has ended.
struct UserProcessEnded {
  static constexpr Kind kKind = Kind::user_process_ended;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::int32_t signal = 0;  // 0 = it exited
  std::int32_t code = 0;
  std::string how;
  std::string method;            // that it was in; "" = none
  std::vector<std::string> log;  // its last lines

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, incarnation, signal, code, how, method, log);
  }
};

}  // namespace troupe::wire
