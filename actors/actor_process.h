#pragma once
#include <ATen/core/Tensor.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "actors/group_table.h"
#include "actors/mailbox.h"
#include "actors/progress.h"
#include "actors/worker.h"
#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/tensor/backend.h"

namespace troupe::actors {

struct ActorOptions {
  std::string control_endpoint;
  std::string blob_endpoint;
  std::uint32_t id = 0;
  std::uint64_t incarnation = 0;  // given by the node agent, so that it knows whom it spawned
  std::string device = "cpu";     // cpu | cuda | cuda:N
  int threads = 1;
  std::string token;                                       // shown to peers on the tensor plane
  std::chrono::milliseconds transfer_deadline{1'800'000};  // well above what a busy peer may take
};

/// An actor process: the control thread (this object's io_context) and the work loop.
/// The control thread puts what is to be done in order into the mailbox; abort is its second lane:
/// it ends the epoch's operations at once, so that a work loop stuck in one comes free.
class ActorProcess {
 public:
  explicit ActorProcess(ActorOptions options);
  ~ActorProcess();

  /// Runs until the controller says shutdown or is lost. Answers the process's exit code.
  int run();

 private:
  void open_doors();
  void connect();
  void on_message(const wire::Header& header, std::span<const std::byte> payload);
  void stop(int exit_code, const std::string& why);
  void tick();
  control::BlobResult fetch_blob(std::uint64_t id, std::uint64_t bytes,
                                 std::chrono::milliseconds deadline);

  ActorOptions options_;
  boost::asio::io_context io_;
  boost::asio::steady_timer timer_;
  at::Device device_;
  std::map<tensor::Backend, std::unique_ptr<tensor::Device>> doors_;
  GroupTable groups_;
  WorkProgress progress_;
  Mailbox mailbox_;
  control::BlobStore blobs_;
  std::unique_ptr<control::Connection> connection_;
  std::unique_ptr<control::BlobConnection> blob_connection_;
  std::unique_ptr<Worker> worker_;
  int exit_code_ = 0;
  bool stopping_ = false;
};

}  // namespace troupe::actors
