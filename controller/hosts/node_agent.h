#pragma once
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "controller/hosts/actor_pins.h"
#include "controller/hosts/agent.h"
#include "controller/hosts/host_options.h"
#include "controller/hosts/process.h"

namespace troupe::cluster {

/// Spawns and reaps the actors of its host: in the controller's process, or in that of `troupe
/// join`.
class NodeAgent final : public Agent {
 public:
  using OnLine = std::function<void(std::uint32_t id, const std::string& line)>;

  /// Of the options all but the memory's limit are used; `actor_program` is named. Throws what
  /// ActorPins throws.
  NodeAgent(boost::asio::io_context& io, const HostOptions& options, OnExit on_exit);
  ~NodeAgent() override;

  /// Told of each line that goes into the logs.
  void on_line(OnLine on_line) { on_line_ = std::move(on_line); }

  std::uint32_t spawn(const ActorLaunch& launch) override;
  bool signal(std::uint32_t id, int signal) override;
  void kill(std::uint32_t id, const std::string& why) override;
  const LineLog& lines(std::uint32_t id) override { return *log_of(id); }
  std::size_t running() const override { return processes_.size(); }

 private:
  std::shared_ptr<LineLog> log_of(std::uint32_t id);
  /// Which CPUs a process was given, as the end of a line.
  std::string place(const Pin* pin) const;
  void note(std::uint32_t id, const std::string& line);

  boost::asio::io_context& io_;
  std::string program_;
  std::filesystem::path log_folder_;
  bool cuda_graphs_;
  bool shares_gpus_;
  OnExit on_exit_;
  OnLine on_line_;
  ActorPins pins_;
  /// Which process was told to say how fast its device is, and when.
  struct Measuring {
    std::uint32_t id = 0;
    std::uint64_t incarnation = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::optional<Measuring> measuring_;
  std::map<std::uint32_t, std::unique_ptr<Process>> processes_;
  std::map<std::uint32_t, std::shared_ptr<LineLog>> logs_;
};

/// troupe-actor beside the running executable. Throws std::runtime_error when there is none.
std::string find_actor_program();

}  // namespace troupe::cluster
