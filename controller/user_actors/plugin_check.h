#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "controller/hosts/process.h"
#include "transport/wire/plugin_messages.h"

namespace troupe::user {

/// Deadline for a plugin to be opened and looked at: libraries of gigabytes may come from a slow
/// disk.
constexpr std::chrono::milliseconds kDescribeDeadline{30'000};

/// Looks at a host's plugins, each in a process of its own, so that nothing of a user's runs here:
/// in the controller's process, or in that of `troupe join`. Lives on the loop.
class PluginCheck {
 public:
  struct Options {
    std::string host_program;  // troupe-host
    std::chrono::milliseconds deadline = kDescribeDeadline;
  };
  using OnDescribed = std::function<void(wire::PluginReport)>;

  PluginCheck(boost::asio::io_context& io, Options options)
      : io_(io), options_(std::move(options)) {}

  /// Tells `handler` what the plugin offers, or one line why it cannot be used. Throws
  /// std::runtime_error when there can be no such process.
  void describe(const std::string& plugin, OnDescribed handler);
  /// Looks at no plugin any more; checks that are under way fail.
  void stop();
  std::size_t running() const { return describing_.size(); }
  std::chrono::milliseconds deadline() const { return options_.deadline; }

 private:
  struct Described {
    explicit Described(boost::asio::io_context& io) : deadline(io) {}
    void end(const std::string& why);

    std::unique_ptr<cluster::Process> process;
    wire::PluginReport report;
    bool whole = false;  // the process has said all
    boost::asio::steady_timer deadline;
  };

  boost::asio::io_context& io_;
  Options options_;
  std::map<std::uint64_t, std::shared_ptr<Described>> describing_;
  std::uint64_t last_described_ = 0;
  bool stopped_ = false;
};

}  // namespace troupe::user
