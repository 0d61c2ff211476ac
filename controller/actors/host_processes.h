#pragma once
#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "controller/actors/host_launcher.h"
#include "controller/cluster/process.h"
#include "transport/control/file_handle.h"
#include "transport/wire/user_host_messages.h"

namespace troupe::user {

/// What processes come in to the controller with.
struct Access {
  std::string token;  // of the cluster
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
  };
  using OnExit =
      std::function<void(std::uint64_t id, std::uint64_t incarnation, const HostExit& how)>;
  using OnDescribed = std::function<void(wire::PluginReport)>;

  HostProcesses(boost::asio::io_context& io, Options options, OnExit on_exit);
  ~HostProcesses() override;

  std::uint32_t spawn(const HostLaunch& launch) override;
  void kill(const std::string& host, std::uint64_t id) override;
  /// For the processes from now on.
  void use(Access access) { options_.access = std::move(access); }
  std::size_t running() const { return processes_.size() + describing_.size(); }

  /// Has a process of its own open the plugin, so that nothing of a user's runs here: what it
  /// offers, or one line why it cannot be used.
  void describe(const std::string& plugin, OnDescribed handler);

 private:
  struct Running {
    std::unique_ptr<cluster::Process> process;
    control::FileHandle doing;
    std::vector<std::filesystem::path> sockets;
  };
  struct Described {
    std::unique_ptr<cluster::Process> process;
    wire::PluginReport report;
  };
  std::string endpoint_for(const HostLaunch& launch, const char* suffix) const;

  boost::asio::io_context& io_;
  Options options_;
  OnExit on_exit_;
  std::map<std::uint64_t, Running> processes_;
  std::map<std::uint64_t, Described> describing_;
  std::uint64_t last_described_ = 0;
};

/// troupe-host beside `actor_program`. Throws std::runtime_error when there is none.
std::string find_host_program(const std::string& actor_program);
/// This machine's GPUs from number `first_gpu` on: those that users' actors may have.
std::vector<std::int32_t> local_gpus(int first_gpu);

}  // namespace troupe::user
