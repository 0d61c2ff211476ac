#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/user/call_server.h"
#include "actors/user/doing.h"
#include "actors/user/mailbox.h"
#include "actors/user/plugin.h"
#include "actors/user/process.h"
#include "transport/calls/exchange.h"
#include "transport/control/door_keys.h"

namespace troupe::runtime {

struct UserHostOptions {
  std::string control_endpoint;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::string token;                        // of the cluster, shown to the controller
  std::optional<control::ClientKeys> keys;  // for a controller on tcp that asks
  std::string ticket;                       // that callers must show
  std::string plugin;                       // file
  std::string endpoint;                     // where to listen for calls
  std::string blob_endpoint;                // and for large values
  std::optional<control::Door> door;        // keys of its own door; none where it asks for none
  bool insecure = false;
  int doing = -1;  // descriptor of the memory that says what runs
};

/// The process of one user's actor: one object, one mailbox, one work loop; callers connect to it
/// directly. The controller says which class to make.
class UserHost final : public ActorContext {
 public:
  explicit UserHost(UserHostOptions options);
  ~UserHost() override;

  /// Runs until the controller says shutdown or is lost. Returns the process's exit code.
  int run();

  std::uint64_t id() const override { return options_.id; }
  const std::string& name() const override { return create_.name; }
  std::uint64_t restarts() const override { return create_.restarts; }
  const std::vector<int>& gpus() const override { return gpus_; }
  Actors actors() override { return Actors(exchange_); }
  void progress() override { progress_.fetch_add(2, std::memory_order_relaxed); }

 private:
  class Running;

  void on_message(const wire::Header& header, std::span<const std::byte> payload);
  void work();
  void make_object();
  wire::CallResult carry_out(const ReadyCall& call);
  void answer(control::PeerId caller, wire::CallResult result);
  void send_answers();
  void leave();

  UserHostOptions options_;
  std::shared_ptr<zmq::context_t> context_;
  std::unique_ptr<Process> process_;
  std::shared_ptr<calls::Exchange> exchange_;
  std::unique_ptr<CallServer> server_;
  Mailbox<ReadyCall> mailbox_;
  Doing doing_;
  /// Progress of the work loop: odd while a method runs.
  std::atomic<std::uint64_t> progress_{0};

  wire::CreateActor create_;
  wire::Header create_header_;
  std::vector<int> gpus_;
  std::unique_ptr<Plugin> plugin_;
  const plugin::Class* class_ = nullptr;
  std::unordered_map<std::string, std::uint32_t> method_index_;
  std::unique_ptr<plugin::Instance> object_;
  std::thread worker_;

  std::mutex answers_mutex_;
  std::vector<std::pair<control::PeerId, wire::CallResult>> answers_;
};

}  // namespace troupe::runtime
