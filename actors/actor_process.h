#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "actors/inspect.h"
#include "actors/mailbox.h"
#include "actors/stage/group_table.h"
#include "actors/stage/progress.h"
#include "actors/user/control_thread.h"
#include "actors/worker.h"
#include "transport/control/keys.h"
#include "transport/tensor/backend.h"

namespace troupe::actors {

struct ActorOptions {
  std::string control_endpoint;
  std::string blob_endpoint;
  std::uint32_t id = 0;
  std::uint64_t incarnation = 0;  // given by the node agent, so that it knows whom it spawned
  std::string device = "cpu";     // cpu | cuda | cuda:N
  int threads = 1;
  bool cuda_graphs = false;                          // what comes again is recorded (docs/gpu.md)
  std::optional<bool> rehearses = {};                // jobs, before they begin; nothing = on a GPU
  std::shared_ptr<DeviceClock> clock = {};           // of tests, in the place of the device's own
  std::function<std::int64_t()> cache_flushes = {};  // of tests, in the place of the device's own
  std::function<void(WorkEvent, std::uint64_t job)> on_event = {};  // for tests, see WorkerTools
  bool measures = false;                  // says in its hello how fast its device is (probe.h)
  std::string tensor_host = "127.0.0.1";  // where the tensor plane listens for other hosts
  std::string token;  // of the cluster: shown to the controller, proven to peers (rendezvous.h)
  std::optional<control::ClientKeys> keys = {};            // for a controller on tcp that asks
  std::chrono::milliseconds transfer_deadline{1'800'000};  // well above what a busy peer may take
};

/// The process of a stage actor: the runtime's process with devices of the tensor plane and a
/// worker. The control thread puts what is to be done in order into the mailbox; abort is its
/// second lane: it ends the epoch's operations at once, so that a work loop stuck in one comes
/// free.
class ActorProcess {
 public:
  explicit ActorProcess(ActorOptions options);
  ~ActorProcess();

  /// Exit code of a process that can no longer compute on its device.
  static constexpr int kDeviceLost = 4;

  /// Runs until the controller says shutdown or is lost. Returns the process's exit code: one of
  /// runtime::ControlThread's, or kDeviceLost.
  int run();

 private:
  void open_tensor_devices();
  void make_process();
  void make_worker();
  void on_message(const wire::Header& header, std::span<const std::byte> payload);

  ActorOptions options_;
  at::Device device_;
  bool rehearses_;
  std::map<tensor::Backend, std::unique_ptr<tensor::Device>> tensor_devices_;
  GroupTable groups_;
  WorkProgress progress_;
  Mailbox mailbox_;
  WorkView view_;
  std::unique_ptr<runtime::ControlThread> process_;
  std::unique_ptr<InspectLane> inspect_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace troupe::actors
