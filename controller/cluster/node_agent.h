#pragma once
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "controller/cluster/line_log.h"
#include "controller/cluster/process.h"

namespace troupe::cluster {

/// What an actor process is started with.
struct ActorLaunch {
  std::uint32_t id = 0;
  std::uint64_t incarnation = 0;
  std::string control_endpoint;
  std::string blob_endpoint;
  std::string device = "cpu";
  int threads = 1;
  std::string token;
  std::string keys;  // CURVE, for the controller; "" = it asks for none
};

/// Spawns and reaps the actors of its host. The local one lives in the controller's process.
class NodeAgent {
 public:
  using OnExit = std::function<void(std::uint32_t id, std::uint64_t incarnation, const ExitCause&)>;

  /// `program` is the path of troupe-actor. `log_folder` may be empty.
  NodeAgent(boost::asio::io_context& io, std::string program, std::filesystem::path log_folder,
            OnExit on_exit);
  ~NodeAgent();

  /// Starts an actor; answers its pid. Throws std::runtime_error naming program and cause.
  std::uint32_t spawn(const ActorLaunch& launch);
  /// Ends it for sure (SIGKILL); its exit is told as any other.
  void kill(std::uint32_t id);
  /// False when it has no process here.
  bool signal(std::uint32_t id, int signal);
  /// What the actor's processes have written, and that they began and ended.
  const LineLog& lines(std::uint32_t id) { return *log_of(id); }
  std::size_t running() const { return processes_.size(); }

 private:
  std::shared_ptr<LineLog> log_of(std::uint32_t id);

  boost::asio::io_context& io_;
  std::string program_;
  std::filesystem::path log_folder_;
  OnExit on_exit_;
  std::map<std::uint32_t, std::unique_ptr<Process>> processes_;
  std::map<std::uint32_t, std::shared_ptr<LineLog>> logs_;
};

/// troupe-actor beside the running executable. Throws std::runtime_error when there is none.
std::string find_actor_program();

}  // namespace troupe::cluster
