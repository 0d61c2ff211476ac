#include "controller/app/cluster.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "base/format.h"
#include "base/log_line.h"
#include "controller/app/controller.h"
#include "controller/app/guarded_loop.h"

namespace troupe::cluster {
namespace asio = boost::asio;
namespace {

const wire::Failure kStopped{wire::FailureCode::cancelled, "the cluster was stopped"};

}  // namespace

/// The controller lives and dies on `thread_`; everything else is posted there.
class Cluster::Impl {
 public:
  explicit Impl(ClusterOptions options)
      : options_(std::move(options)), guard_(asio::make_work_guard(io_)) {
    std::promise<std::string> started;
    auto endpoint = started.get_future();
    thread_ = std::thread([this, &started] { run(started); });
    try {
      endpoint_ = endpoint.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~Impl() { stop(); }

  const std::string& endpoint() const { return endpoint_; }
  std::uint16_t metrics_port() const { return metrics_port_; }

  void wait_ready(std::chrono::milliseconds deadline) {
    auto promise = std::make_shared<std::promise<std::optional<std::string>>>();
    auto ready = promise->get_future();
    asio::post(io_, [this, promise] {
      controller_->on_ready(
          [promise](std::optional<std::string> why) { promise->set_value(std::move(why)); });
    });
    {
      // Either the controller answers or its loop ends: then the promise is never kept.
      std::unique_lock lock(mutex_);
      const auto until = std::chrono::steady_clock::now() + deadline;
      const auto settled = [&] {
        return has_ended_ || ready.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      };
      while (!settled() && std::chrono::steady_clock::now() < until)
        ended_.wait_for(lock, std::chrono::milliseconds(20));
      if (has_ended_)
        throw std::runtime_error("[cluster] it was stopped before its actors were ready");
    }
    if (ready.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      throw std::runtime_error(
          fmt::format("[cluster] not every actor was ready within {} s",
                      std::chrono::duration_cast<std::chrono::seconds>(deadline).count()));
    }
    if (const auto why = ready.get()) throw std::runtime_error("[cluster] " + *why);
  }

  void run_until_stopped() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return has_ended_; });
    if (!fault_.empty()) throw std::runtime_error("[cluster] " + fault_);
  }

  void stop() {
    {
      std::lock_guard lock(stop_mutex_);
      if (!thread_.joinable()) return;
      asio::post(io_, [this] { begin_stop(Stop::controller, kStopped); });
      thread_.join();
    }
  }

 private:
  void run(std::promise<std::string>& started) {
    try {
      controller_ = std::make_unique<Controller>(io_, options_);
      controller_->on_stop_asked([this] { begin_stop(Stop::cluster, kStopped); });
      metrics_port_ = controller_->metrics_port();
      started.set_value(controller_->endpoint());
    } catch (...) {
      controller_.reset();
      started.set_exception(std::current_exception());
      return;
    }
    run_guarded(io_, [this](const std::string& what) { begin_stop_by(what); });
    controller_.reset();
    {
      std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_all();
  }

  void begin_stop(Stop what, const wire::Failure& why) {
    controller_->stop(what, why, [this] {
      guard_.reset();
      // A turn for what still goes out to clients; then the loop ends.
      asio::post(io_, [this] { io_.stop(); });
    });
  }

  /// Something that nobody expected was thrown on the loop: there is no knowing what was left
  /// half-done.
  void begin_stop_by(const std::string& what) {
    const std::string why = "the controller failed: " + what;
    log_line(why);
    {
      std::lock_guard lock(mutex_);
      if (fault_.empty()) fault_ = why;
    }
    begin_stop(Stop::controller, {wire::FailureCode::internal, why});
  }

  ClusterOptions options_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::unique_ptr<Controller> controller_;
  std::string endpoint_;
  std::uint16_t metrics_port_ = 0;
  std::thread thread_;
  std::mutex stop_mutex_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::string fault_;
};

Cluster::Cluster(ClusterOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Cluster::~Cluster() = default;

const std::string& Cluster::endpoint() const {
  return impl_->endpoint();
}

std::uint16_t Cluster::metrics_port() const {
  return impl_->metrics_port();
}

void Cluster::wait_ready(std::chrono::milliseconds deadline) {
  impl_->wait_ready(deadline);
}

void Cluster::run_until_stopped() {
  impl_->run_until_stopped();
}

void Cluster::stop() {
  impl_->stop();
}

}  // namespace troupe::cluster
