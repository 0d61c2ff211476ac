#pragma once
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "actors/inspect.h"
#include "actors/mailbox.h"
#include "actors/stage/device_clock.h"
#include "actors/stage/group_table.h"
#include "actors/stage/progress.h"
#include "actors/stage/stage.h"
#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/tensor/backend.h"

namespace troupe::actors {

/// Fetches a blob from the controller; safe to call from the work loop, waits at most until the
/// deadline.
using FetchBlob = std::function<control::BlobResult(std::uint64_t id, std::uint64_t bytes,
                                                    std::chrono::milliseconds,
                                                    const std::function<void()>& tick)>;
/// Runs something on the control thread, with its connection.
using PostToControl = std::function<void(std::function<void(control::Connection&)>)>;

enum class WorkEvent {
  rehearses,
  rehearses_whole,    // a step that takes the whole picture
  rehearses_patches,  // a step patch by patch
  rehearsed,
  posts_receive
};

/// Tools of the work loop; all of them outlive the loop.
struct WorkerTools {
  at::Device device;
  std::map<tensor::Backend, std::unique_ptr<tensor::Device>>& tensor_devices;
  GroupTable& groups;
  WorkProgress& progress;
  Mailbox& mailbox;
  WorkView& view;
  control::BlobStore& blobs;
  FetchBlob fetch_blob;
  PostToControl post;
  std::chrono::milliseconds transfer_deadline;
  bool cuda_graphs = false;
  std::shared_ptr<DeviceClock> clock = nullptr;  // null on a CPU
  bool rehearses = false;                        // jobs, before their receives are posted
  /// Makes the process leave, because it can no longer compute on its device.
  std::function<void(const std::string& why)> retire;
  /// Same as actors::cache_flushes, for this device.
  std::function<std::int64_t()> cache_flushes;
  /// Called at a job's rehearsal and for the receives that are posted for the job, for tests. May
  /// be empty.
  std::function<void(WorkEvent, std::uint64_t job)> on_event;

  /// Returns true, and makes the process leave, if after the error nothing can be computed here any
  /// more.
  bool retire_after(const std::exception& error) const;
  template <class M>
  void reply(const wire::Header& request, M message) const {
    post([request, message = std::move(message)](control::Connection& connection) {
      connection.reply(request, message);
    });
  }
  template <class M>
  void send(M message) const {
    post([message = std::move(message)](control::Connection& connection) {
      connection.send(message);
    });
  }
};

/// Stages of the actor by deployment.
using Stages = std::map<std::uint64_t, std::unique_ptr<Stage>>;

/// Returns the failure that is reported for an error of the work loop.
wire::Failure to_failure(const std::exception& error);

}  // namespace troupe::actors
