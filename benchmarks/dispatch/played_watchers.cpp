#include "benchmarks/dispatch/played_watchers.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>
#include <zmq.hpp>

#include "transport/control/connection.h"
#include "transport/wire/client_messages.h"

namespace troupe::bench {
namespace {

constexpr std::chrono::milliseconds kAskAgain{50};
constexpr std::chrono::seconds kDeadline{60};

class Watchers {
 public:
  explicit Watchers(const PlayedWatchersOptions& options) : options_(options) {
    // Each link watches its handshake with sockets of its own.
    context_->set(zmq::ctxopt::max_sockets, 4 * options.watchers + 64);
    for (int i = 0; i < options.watchers; ++i) {
      control::ConnectionOptions link;
      link.endpoint = options.endpoint;
      link.hello.role = PeerRole::client;
      link.hello.name = "watcher";
      link.welcome_deadline = kDeadline;
      link.socket.context = context_;
      link.socket.patience = std::chrono::microseconds(0);
      watchers_.push_back({std::make_unique<control::Connection>(io_, link),
                           std::make_unique<boost::asio::steady_timer>(io_),
                           static_cast<std::uint64_t>(1 + i % options.jobs)});
      start(watchers_.size() - 1);
    }
  }

  void run() {
    io_.run();
    if (!failure_.empty()) throw std::runtime_error(failure_);
    std::printf("%llu\n", static_cast<unsigned long long>(heard_));
  }

 private:
  struct Watcher {
    std::unique_ptr<control::Connection> link;
    std::unique_ptr<boost::asio::steady_timer> timer;
    std::uint64_t job;
  };

  void start(std::size_t number) {
    auto& link = *watchers_[number].link;
    link.on_lost(
        [this](const control::Loss& loss) { fail("a watcher's link is lost: " + loss.why); });
    link.on_message([this](const wire::Header& header, std::span<const std::byte>) {
      if (header.kind == wire::Kind::job_progress) ++heard_;
      if (header.kind != wire::Kind::job_finished) return;
      ++heard_;
      if (++ended_ == watchers_.size()) io_.stop();
    });
    link.start(
        [this, number](const wire::Welcome&) {
          if (++welcomed_ == watchers_.size()) {
            std::puts("ready");
            std::fflush(stdout);
          }
          follow(number);
        },
        [this](const wire::Failure& failure) { fail(failure.what); });
  }

  /// Waits for the job, and asks again until the job has been submitted.
  void follow(std::size_t number) {
    auto& watcher = watchers_[number];
    watcher.link->request(wire::WaitJob{watcher.job}, kDeadline,
                          [this, number](const control::Reply& reply) {
                            if (reply.ok()) return;
                            auto& timer = *watchers_[number].timer;
                            timer.expires_after(kAskAgain);
                            timer.async_wait([this, number](const auto& error) {
                              if (!error) follow(number);
                            });
                          });
  }

  void fail(const std::string& why) {
    failure_ = why;
    io_.stop();
  }

  const PlayedWatchersOptions options_;
  boost::asio::io_context io_{1};
  std::shared_ptr<zmq::context_t> context_ = control::make_context();
  std::vector<Watcher> watchers_;
  std::size_t welcomed_ = 0;
  std::size_t ended_ = 0;
  std::uint64_t heard_ = 0;
  std::string failure_;
};

}  // namespace

void play_watchers(const PlayedWatchersOptions& options) {
  // The watchers run at low priority: on other machines they would take nothing from the
  // controller.
  if (nice(10) == -1) std::perror("nice");
  Watchers(options).run();
}

}  // namespace troupe::bench
