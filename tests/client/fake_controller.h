#pragma once
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/control/blob_channel.h"
#include "transport/control/endpoint.h"
#include "transport/control/server.h"
#include "transport/wire/client_messages.h"

namespace troupe::testing {

using namespace std::chrono_literals;

/// A controller that does as a test says: real sockets, no cluster behind them. By default it
/// accepts every job as the next number, knows it for wait and cancel, and never ends it.
class FakeController {
 public:
  using Handler = std::function<void(FakeController&, control::PeerId, const wire::Header&,
                                     std::span<const std::byte>)>;

  /// `journal`: the id of the journal that it says it keeps; empty = none.
  explicit FakeController(const std::string& journal = {}) {
    control::ServerOptions options;
    if (!journal.empty()) options.attributes["journal"] = journal;
    options.endpoint = folder_.endpoint("control.sock");
    options.heartbeat_interval = 100ms;
    auto servers = control::bind_servers(io_, options, store_);
    server_ = std::move(servers.control);
    blobs_ = std::move(servers.blobs);
    server_->on_message([this](control::PeerId peer, const wire::Header& header,
                               std::span<const std::byte> bytes) { answer(peer, header, bytes); });
    server_->on_lost([this](control::PeerId, const control::Loss&) { ++clients_lost; });
    thread_ = std::thread([this] { io_.run(); });
  }

  ~FakeController() {
    run([this] {
      if (server_) server_->close();
      if (blobs_) blobs_->close();
      server_.reset();
      blobs_.reset();
    });
    io_.stop();
    thread_.join();
  }

  /// Ends without a goodbye, as a process that was killed.
  void vanish() {
    run([this] {
      blobs_.reset();
      server_.reset();
    });
  }

  std::string endpoint() const { return folder_.endpoint("control.sock"); }
  void on(wire::Kind kind, Handler handler) {
    run([&] { handlers_[kind] = std::move(handler); });
  }

  // The rest on the controller's thread.
  control::Server& server() { return *server_; }
  control::BlobServer& blob_server() { return *blobs_; }

  wire::BlobRef hold(const std::string& name, std::string bytes,
                     std::vector<std::int64_t> shape = {}) {
    const std::uint64_t size = bytes.size();
    return {name, store_.add(std::move(bytes)), size, std::move(shape)};
  }
  void drop(const wire::BlobRef& blob) { store_.remove(blob.id); }

  std::uint64_t accept(control::PeerId peer, const wire::Header& header) {
    wire::JobAccepted accepted;
    accepted.job = ++last_job;
    server_->reply(peer, header, accepted);
    return accepted.job;
  }
  void progress(control::PeerId peer, std::uint64_t job, int step,
                std::vector<wire::BlobRef> blobs = {}) {
    wire::JobProgress progress;
    progress.job = job;
    progress.phase = JobPhase::denoising;
    progress.step = step;
    progress.steps = 4;
    progress.seconds_per_step = 0.5;
    progress.blobs = std::move(blobs);
    server_->send(peer, progress);
  }
  void succeed(control::PeerId peer, std::uint64_t job, std::vector<wire::BlobRef> blobs) {
    wire::JobFinished finished;
    finished.job = job;
    finished.state = JobState::succeeded;
    finished.blobs = std::move(blobs);
    finished.report = R"({"seed": 7})";
    server_->send(peer, finished);
  }
  void fail(control::PeerId peer, std::uint64_t job, wire::Failure failure,
            JobState state = JobState::failed) {
    wire::JobFinished finished;
    finished.job = job;
    finished.state = state;
    finished.failure = std::move(failure);
    server_->send(peer, finished);
  }

  void run(const std::function<void()>& work) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      work();
      done.set_value();
    });
    if (done.get_future().wait_for(60s) != std::future_status::ready)
      throw std::runtime_error("the controller is stuck");
  }

  std::uint64_t last_job = 0;
  std::atomic<int> clients_lost = 0;

 private:
  void answer(control::PeerId peer, const wire::Header& header, std::span<const std::byte> bytes) {
    if (const auto found = handlers_.find(header.kind); found != handlers_.end()) {
      found->second(*this, peer, header, bytes);
    } else if (header.kind == wire::Kind::submit_job) {
      accept(peer, header);
    } else if (header.kind == wire::Kind::list_jobs) {
      server_->reply(peer, header, wire::JobList{});
    } else if (header.kind == wire::Kind::wait_job || header.kind == wire::Kind::cancel_job ||
               header.kind == wire::Kind::stop_cluster) {
      server_->reply(peer, header, wire::Done{"as you wish"});
    }
  }

  control::IpcFolder folder_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_ =
      boost::asio::make_work_guard(io_);
  control::BlobStore store_;
  std::unique_ptr<control::Server> server_;
  std::unique_ptr<control::BlobServer> blobs_;
  std::map<wire::Kind, Handler> handlers_;
  std::thread thread_;
};

inline std::string float_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace troupe::testing
