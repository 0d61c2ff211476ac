#pragma once
#include <set>
#include <thread>

#include "actors/tensor_inspection.h"
#include "actors/worker_jobs.h"

namespace troupe::actors {

/// The work loop: one thread that takes the mailbox's messages in order and issues all
/// communication. What fails is told to the controller as a value; the loop goes on.
class Worker {
 public:
  explicit Worker(WorkerTools tools);
  /// Ends after the message in hand; the mailbox must be closed before.
  ~Worker();

 private:
  void loop();
  void handle(const Message& message);
  /// Stands still if an injected hold is to keep the work loop before this message; that counts as
  /// progress, because the hold ends by itself.
  void meet_hold(const Message& message);
  /// Returns whether nobody waits any more for what the message asks.
  bool is_over(const Message& message) const;
  void load(const wire::Header& header, const wire::LoadStage& load);
  void connect(const wire::Header& header, const wire::ConnectGroups& connect);
  void end_epoch(const wire::Header& header, const wire::AbortEpoch& abort);
  void unload(const wire::Header& header, const wire::Unload& unload);

  WorkerTools tools_;
  Stages stages_;  // by deployment
  std::set<std::uint64_t> connected_epochs_;
  WorkerJobs jobs_;
  TensorInspection inspection_;
  std::thread thread_;
};

}  // namespace troupe::actors
