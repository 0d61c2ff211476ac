#include "benchmarks/dispatch/played_host.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>

#include "transport/control/connection.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/done.h"
#include "transport/wire/host_messages.h"

namespace troupe::bench {
namespace {

using control::Clock;

std::int64_t nanoseconds(Clock::time_point when) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
}

double seconds(Clock::duration span) {
  return std::chrono::duration<double>(span).count();
}

/// One loop, one I/O thread, for all links of a played process.
struct Loop {
  boost::asio::io_context io{1};
  std::shared_ptr<zmq::context_t> context = control::make_context();

  control::ConnectionOptions link(const std::string& endpoint) const {
    control::ConnectionOptions options;
    options.endpoint = endpoint;
    options.welcome_deadline = std::chrono::seconds(60);
    options.socket.context = context;
    options.socket.patience = std::chrono::microseconds(0);  // the cores are for others
    return options;
  }
};

struct PlayedActorOptions {
  std::string endpoint;
  std::uint32_t id = 0;
  std::uint64_t incarnation = 0;
  std::string token;
  double task_seconds = 0;
};

class PlayedActor {
 public:
  PlayedActor(Loop& loop, const PlayedActorOptions& options, std::function<void()> gone)
      : task_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options.task_seconds))),
        timer_(loop.io),
        gone_(std::move(gone)) {
    auto link = loop.link(options.endpoint);
    link.incarnation = options.incarnation;
    link.hello.role = PeerRole::actor;
    link.hello.name = "actor " + std::to_string(options.id);
    link.hello.attributes = {
        {"id", std::to_string(options.id)}, {"device", "cpu"},         {"threads", "1"},
        {"token", options.token},           {"address.shm", "played"}, {"address.tcp", "played"}};
    link_ = std::make_unique<control::Connection>(loop.io, link);
    link_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
      on_message(header, payload);
    });
    link_->on_lost([this](const control::Loss&) { gone_(); });
    link_->start([](const wire::Welcome&) {}, [this](const wire::Failure&) { gone_(); });
  }

 private:
  struct Entry {
    std::uint64_t epoch;
    std::uint64_t job;
    std::uint32_t task;
  };

  void on_message(const wire::Header& header, std::span<const std::byte> payload) {
    switch (header.kind) {
      case wire::Kind::run_tasks:
        return take(wire::decode<wire::RunTasks>(payload));
      case wire::Kind::load_stage:
        link_->reply(header, wire::StageLoaded{.weight_bytes = 1, .seconds = 0});
        return;
      case wire::Kind::connect_groups:
        link_->reply(header, wire::GroupsConnected{});
        return;
      case wire::Kind::end_job:
        link_->reply(header, std::exchange(stats_[wire::decode<wire::EndJob>(payload).job], {}));
        return;
      case wire::Kind::abort_epoch: {
        const auto epoch = wire::decode<wire::AbortEpoch>(payload).epoch;
        std::erase_if(queue_, [epoch](const Entry& entry) { return entry.epoch == epoch; });
        link_->reply(header, wire::Done{});
        return;
      }
      case wire::Kind::shutdown:
        link_->close("told to leave", wire::LinkEnd::stopped);
        return gone_();
      default:
        return;
    }
  }

  void take(const wire::RunTasks& tasks) {
    const auto now = Clock::now();
    const bool was_idle = queue_.empty();
    for (const auto& command : tasks.commands) {
      if (!command.receive) queue_.push_back({tasks.epoch, command.job, command.task});
    }
    if (!was_idle || queue_.empty()) return;
    // Whoever has worked for the job before waited for the controller.
    const auto stats = stats_.find(queue_.front().job);
    if (stats != stats_.end()) stats->second.controller_wait_seconds += seconds(now - free_);
    begin_at(now);
  }

  void begin_at(Clock::time_point when) {
    began_ = when;
    timer_.expires_at(when + task_);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) end();
    });
  }

  void end() {
    if (queue_.empty()) return;
    const auto now = Clock::now();
    // A loop that was late has several ends to tell of.
    while (!queue_.empty() && began_ + task_ <= now) {
      const Entry entry = queue_.front();
      queue_.pop_front();
      free_ = began_ + task_;
      stats_[entry.job].busy_seconds += seconds(task_);
      link_->set_progress(++progress_);
      wire::TaskDone done;
      done.epoch = entry.epoch;
      done.job = entry.job;
      done.task = entry.task;
      done.ran = {nanoseconds(began_), nanoseconds(free_)};
      link_->send(done);
      began_ = free_;
    }
    if (!queue_.empty()) begin_at(began_);
  }

  const Clock::duration task_;
  boost::asio::steady_timer timer_;
  std::function<void()> gone_;
  std::unique_ptr<control::Connection> link_;
  std::deque<Entry> queue_;
  std::map<std::uint64_t, wire::ActorJobStats> stats_;
  Clock::time_point began_;
  Clock::time_point free_;  // when the last task ended
  std::uint64_t progress_ = 0;
};

class PlayedHost {
 public:
  explicit PlayedHost(PlayedHostOptions options) : options_(std::move(options)) {
    auto link = loop_.link(options_.endpoint);
    link.hello.role = PeerRole::node;
    link.hello.name = options_.name;
    link.hello.attributes = {{"actors", std::to_string(options_.actors)},
                             {"device", "cpu"},
                             {"cores", std::to_string(options_.actors)},
                             {"gpus", ""}};
    link_ = std::make_unique<control::Connection>(loop_.io, link);
    link_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
      on_message(header, payload);
    });
    link_->on_lost([this](const control::Loss&) { loop_.io.stop(); });
    link_->start([](const wire::Welcome&) {},
                 [this](const wire::Failure& failure) {
                   failure_ = failure.what;
                   loop_.io.stop();
                 });
  }

  void run() {
    loop_.io.run();
    if (!failure_.empty()) throw std::runtime_error(options_.name + ": " + failure_);
  }

 private:
  void on_message(const wire::Header& header, std::span<const std::byte> payload) {
    if (header.kind == wire::Kind::start_process) {
      const auto order = wire::decode<wire::StartProcess>(payload);
      link_->reply(header, wire::ProcessStarted{static_cast<std::uint32_t>(getpid())});
      const auto id = static_cast<std::uint32_t>(order.owner.id);
      actors_[id] = std::make_unique<PlayedActor>(
          loop_,
          PlayedActorOptions{options_.endpoint, id, order.incarnation, order.token,
                             options_.task_seconds},
          [this, id, incarnation = order.incarnation] { ended(id, incarnation); });
    } else if (header.kind == wire::Kind::shutdown) {
      stopping_ = true;
      leave_if_empty();
    }
  }

  /// An actor's link has ended: so has its process.
  void ended(std::uint32_t id, std::uint64_t incarnation) {
    boost::asio::post(loop_.io, [this, id, incarnation] {
      if (actors_.erase(id) > 0)
        link_->send(wire::ProcessEnded{.owner = {PeerRole::actor, id}, .incarnation = incarnation});
      leave_if_empty();
    });
  }

  void leave_if_empty() {
    if (!stopping_ || !actors_.empty()) return;
    link_->close("the host leaves", wire::LinkEnd::stopped);
    loop_.io.stop();
  }

  PlayedHostOptions options_;
  Loop loop_;
  std::unique_ptr<control::Connection> link_;
  std::map<std::uint32_t, std::unique_ptr<PlayedActor>> actors_;
  std::string failure_;
  bool stopping_ = false;
};

}  // namespace

void play_host(const PlayedHostOptions& options) {
  PlayedHost(options).run();
}

int play_local_actor(int argc, const char* const* argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2)
    given[argv[i]] = argv[i + 1];
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  Loop loop;
  PlayedActor actor(loop,
                    {given["--control"], static_cast<std::uint32_t>(std::stoul(given["--id"])),
                     std::stoull(variable("TROUPE_INCARNATION")), variable("TROUPE_TOKEN"), 0.001},
                    [&] { loop.io.stop(); });
  loop.io.run();
  return 0;
}

}  // namespace troupe::bench
