#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file_handle.h"
#include "controller/hosts/process.h"
#include "controller/user_actors/host_launcher.h"
#include "transport/wire/user_host_messages.h"

namespace troupe::user {

/// For a plugin to be opened and looked at: libraries of gigabytes may come from a slow disk.
constexpr std::chrono::milliseconds kDescribeDeadline{30'000};

/// What processes come in to the controller with.
struct Access {
  std::string token;  // that users' actors show to the controller
  std::string keys;   // CURVE, as text; "" = the controller asks for none
  bool insecure = false;
};

/// The processes of users' actors on this host, and the check of its plugins: in the controller's
/// process, or in that of `troupe join`. Lives on the loop.
class HostProcesses final : public HostLauncher {
 public:
  struct Options {
    std::string host_program;   // troupe-host
    std::string actor_program;  // troupe-actor, for classes that need torch
    std::string control_endpoint;
    std::string listen_host;  // address for callers where the controller is on tcp; "" = loopback
    Access access;
    std::filesystem::path log_folder;  // may be empty
    std::chrono::milliseconds describe_deadline = kDescribeDeadline;
  };
  using OnExit =
      std::function<void(std::uint64_t id, std::uint64_t incarnation, const HostExit& how)>;
  using OnDescribed = std::function<void(wire::PluginReport)>;

  HostProcesses(boost::asio::io_context& io, Options options, OnExit on_exit);
  ~HostProcesses() override;

  /// One that is there already is not started again.
  std::uint32_t spawn(const HostLaunch& launch) override;
  void kill(const std::string& host, std::uint64_t id, const std::string& why) override;
  /// For the processes from now on.
  void use(Access access) { options_.access = std::move(access); }
  std::size_t running() const { return processes_.size() + describing_.size(); }

  /// Has a process of its own open the plugin, so that nothing of a user's runs here: what it
  /// offers, or one line why it cannot be used. Throws std::runtime_error when there can be no such
  /// process.
  void describe(const std::string& plugin, OnDescribed handler);
  /// No plugin is looked at any more; those that are under way fail.
  void end_checks();

 private:
  struct Running {
    std::uint64_t id = 0;  // of the actor
    std::unique_ptr<cluster::Process> process;
    FileHandle doing;
    std::vector<std::filesystem::path> sockets;
  };
  struct Described {
    explicit Described(boost::asio::io_context& io) : deadline(io) {}
    void end(const std::string& why);

    std::unique_ptr<cluster::Process> process;
    wire::PluginReport report;
    bool whole = false;  // it has said all
    boost::asio::steady_timer deadline;
  };
  /// Of actors that have ended the newest logs stay.
  void forget_old_logs(std::uint64_t ended);
  std::filesystem::path log_of(std::uint64_t actor) const;
  std::string endpoint_for(const HostLaunch& launch, const char* suffix) const;

  boost::asio::io_context& io_;
  Options options_;
  OnExit on_exit_;
  std::map<std::uint64_t, Running> processes_;  // by incarnation: an old one may still be ending
  std::map<std::uint64_t, std::shared_ptr<Described>> describing_;
  std::uint64_t last_described_ = 0;
  std::deque<std::uint64_t> ended_;  // actors whose processes have, and who may have a log
  bool checks_ended_ = false;
};

/// troupe-host beside `actor_program`. Throws std::runtime_error when there is none.
std::string find_host_program(const std::string& actor_program);
/// This machine's GPUs from number `first_gpu` on: those that users' actors may have.
std::vector<std::int32_t> local_gpus(int first_gpu);

}  // namespace troupe::user
