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

/// Report about a library on one host.
struct PluginReport {
  std::string file;            // file that was opened there
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

}  // namespace troupe::wire
