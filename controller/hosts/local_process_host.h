#pragma once
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "controller/hosts/actor_pins.h"
#include "controller/hosts/host_options.h"
#include "controller/hosts/process.h"
#include "controller/hosts/process_host.h"

namespace troupe::cluster {

/// Spawns and reaps the processes of its host, those of actors and those of users' actors: in the
/// controller's process, or in that of `troupe join`. Lives on the loop.
class LocalProcessHost final : public ProcessHost {
 public:
  using OnLine = std::function<void(std::uint32_t actor, const std::string& line)>;

  struct Options {
    HostOptions host;          // all but the memory's limit is used; actor_program is named
    std::string host_program;  // troupe-host, for users' actors that need no torch
    std::string control_endpoint;
    std::string actor_endpoint = {};  // where actors reach the controller instead; "" = there
    std::string blob_endpoint;
    std::string listen_host;  // where tensor planes and users' actors listen for other hosts; "" =
                              // loopback
  };

  /// Throws what ActorPins throws.
  LocalProcessHost(boost::asio::io_context& io, Options options, OnExit on_exit);
  ~LocalProcessHost() override;

  /// Sets what is told of each line that goes into the logs of actors.
  void on_line(OnLine on_line) { on_line_ = std::move(on_line); }

  std::uint32_t start(const wire::StartProcess& launch) override;
  bool signal(const ProcessOwner& owner, int signal) override;
  void end(const ProcessOwner& owner, const std::string& why) override;
  const LineLog& lines(std::uint32_t actor) override { return logs_[actor]; }
  std::size_t running() const override { return processes_.size(); }
  /// Returns the number of processes of owners of that role.
  std::size_t running(PeerRole role) const;
  /// Returns the incarnation of the owner's newest process; 0 where that has ended.
  std::uint64_t newest(const ProcessOwner& owner) const;

 private:
  struct Running {
    ProcessOwner owner;
    std::unique_ptr<Process> process;
    FileHandle doing;  // of a user's actor: memory in which it says which method it is in
    std::vector<std::filesystem::path> sockets;
    /// Returns the method that the process wrote last into the memory it was given.
    std::string method() const;
  };
  void prepare_actor(const wire::StartProcess& launch, ProcessOptions& options);
  void prepare_user_actor(const wire::StartProcess& launch, ProcessOptions& options,
                          Running& running) const;
  void exited(std::uint64_t incarnation, const ExitCause& cause);
  std::string user_endpoint(const wire::StartProcess& launch, const char* suffix) const;
  /// Returns the CPUs that a process was given, as the end of a line.
  std::string place(const Pin* pin) const;
  void note(std::uint32_t actor, const std::string& line);
  /// Removes old logs of users' actors that have ended; the newest stay.
  void forget_old_logs(std::uint64_t ended);
  std::filesystem::path user_log(std::uint64_t user_actor) const;

  boost::asio::io_context& io_;
  const Options options_;
  OnExit on_exit_;
  OnLine on_line_;
  ActorPins pins_;
  /// Process that was told to say how fast its device is, and when.
  struct Measuring {
    std::uint64_t incarnation = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::optional<Measuring> measuring_;
  std::map<std::uint32_t, LineLog> logs_;  // by actor
  std::deque<std::uint64_t> ended_users_;  // users' actors that have ended and may have a log
  std::map<ProcessOwner, std::uint64_t> newest_;
  std::map<std::uint64_t, Running> processes_;  // by incarnation: an old one may still be ending
};

/// Returns the path of troupe-actor beside the running executable. Throws std::runtime_error when
/// there is none.
std::string find_actor_program();
/// Returns the path of troupe-host beside `actor_program`, whether there is one or not.
std::string host_program_beside(const std::string& actor_program);
/// Returns the path of troupe-host beside `actor_program`. Throws std::runtime_error when there is
/// none.
std::string find_host_program(const std::string& actor_program);

}  // namespace troupe::cluster
