#include "benchmarks/dispatch/played_host.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "transport/control/connection.h"
#include "transport/control/mux.h"
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

/// Loop and I/O thread for all links of a played process.
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
  std::uint32_t id = 0;
  std::string token;
  double task_seconds = 0;
};

wire::Hello hello_of(const PlayedActorOptions& options) {
  wire::Hello hello;
  hello.role = PeerRole::actor;
  hello.name = "actor " + std::to_string(options.id);
  hello.host = control::host_name();
  hello.pid = static_cast<std::uint32_t>(getpid());
  hello.attributes = {
      {"id", std::to_string(options.id)}, {"device", "cpu"},         {"threads", "1"},
      {"token", options.token},           {"address.shm", "played"}, {"address.tcp", "played"}};
  return hello;
}

/// Link of a played actor to the controller.
class PlayedLink {
 public:
  virtual ~PlayedLink() = default;
  virtual void send_frame(std::string frame) = 0;
  virtual void set_progress(std::uint64_t progress) = 0;

  template <class M>
  void send(const M& message) {
    send_frame(wire::encode_frame({}, message));
  }
  template <class M>
  void reply(const wire::Header& request, const M& message) {
    wire::Header header;
    header.flags = wire::kFlagReply;
    header.correlation = request.correlation;
    send_frame(wire::encode_frame(header, message));
  }
};

class PlayedActor {
 public:
  PlayedActor(Loop& loop, const PlayedActorOptions& options, PlayedLink& link)
      : task_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options.task_seconds))),
        timer_(loop.io),
        link_(link) {}

  /// False when it is told to leave.
  bool on_message(const wire::Header& header, std::span<const std::byte> payload) {
    switch (header.kind) {
      case wire::Kind::run_tasks:
        take(wire::decode<wire::RunTasks>(payload));
        return true;
      case wire::Kind::load_stage:
        link_.reply(header, wire::StageLoaded{.weight_bytes = 1, .seconds = 0});
        return true;
      case wire::Kind::connect_groups:
        link_.reply(header, wire::GroupsConnected{});
        return true;
      case wire::Kind::end_job:
        link_.reply(header, std::exchange(stats_[wire::decode<wire::EndJob>(payload).job], {}));
        return true;
      case wire::Kind::abort_epoch: {
        const auto epoch = wire::decode<wire::AbortEpoch>(payload).epoch;
        std::erase_if(queue_, [epoch](const Entry& entry) { return entry.epoch == epoch; });
        link_.reply(header, wire::Done{});
        return true;
      }
      case wire::Kind::shutdown:
        link_.send(wire::Goodbye{"told to leave", wire::LinkEnd::stopped});
        return false;
      default:
        return true;
    }
  }

 private:
  struct Entry {
    std::uint64_t epoch;
    std::uint64_t job;
    std::uint32_t task;
  };

  void take(const wire::RunTasks& tasks) {
    const auto now = Clock::now();
    const bool was_idle = queue_.empty();
    for (const auto& command : tasks.commands) {
      if (!command.receive) queue_.push_back({tasks.epoch, command.job, command.task});
    }
    if (!was_idle || queue_.empty()) return;
    // Whoever has worked for the job before waited for the controller.
    const auto stats = stats_.find(queue_.front().job);
    if (stats != stats_.end()) stats->second.controller_wait_seconds += seconds(now - idle_since_);
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
    // A loop that was late has several ends to report.
    while (!queue_.empty() && began_ + task_ <= now) {
      const Entry entry = queue_.front();
      queue_.pop_front();
      stats_[entry.job].busy_seconds += seconds(task_);
      link_.set_progress(++progress_);
      wire::TaskDone done;
      done.epoch = entry.epoch;
      done.job = entry.job;
      done.task = entry.task;
      done.ran = {nanoseconds(began_), nanoseconds(began_ + task_)};
      link_.send(done);
      began_ += task_;
    }
    // Lateness of this process itself does not count as waiting for the controller.
    idle_since_ = now;
    if (!queue_.empty()) begin_at(began_);
  }

  const Clock::duration task_;
  boost::asio::steady_timer timer_;
  PlayedLink& link_;
  std::deque<Entry> queue_;
  std::map<std::uint64_t, wire::ActorJobStats> stats_;
  Clock::time_point began_;
  Clock::time_point idle_since_;  // when the last end was told
  std::uint64_t progress_ = 0;
};

/// A link that the host's own carries: what a process would say over its connection, and the relay
/// of its host hand on.
class MuxActor final : public PlayedLink {
 public:
  MuxActor(Loop& loop, control::MuxSender& carrier, std::uint32_t slot, std::uint64_t incarnation,
           const PlayedActorOptions& options)
      : carrier_(carrier),
        slot_(slot),
        incarnation_(incarnation),
        beat_(loop.io),
        actor_(loop, options, *this) {
    send(hello_of(options));
  }

  /// False when it has left.
  bool take(const std::string& frame) {
    const auto header = wire::decode_header(wire::as_bytes(frame));
    const auto payload = wire::payload_of(wire::as_bytes(frame));
    switch (header.kind) {
      case wire::Kind::welcome: {
        const auto welcome = wire::decode<wire::Welcome>(payload);
        id_ = welcome.peer;
        interval_ = control::Milliseconds(welcome.heartbeat_interval_ms);
        beat();
        return true;
      }
      case wire::Kind::heartbeat:
        return true;
      case wire::Kind::ping:
        reply(header, wire::Pong{});
        return true;
      case wire::Kind::refuse:
      case wire::Kind::goodbye:
        return false;
      default:
        return actor_.on_message(header, payload);
    }
  }

  void send_frame(std::string frame) override {
    wire::FrameHead(frame).set_sender(id_, incarnation_, ++sequence_);
    carrier_.add(slot_, frame);
  }
  void set_progress(std::uint64_t progress) override { progress_ = progress; }

 private:
  void beat() {
    beat_.expires_after(interval_);
    beat_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      send(wire::Heartbeat{progress_});
      beat();
    });
  }

  control::MuxSender& carrier_;
  const std::uint32_t slot_;
  const std::uint64_t incarnation_;
  boost::asio::steady_timer beat_;
  control::Milliseconds interval_{};
  std::uint64_t id_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t progress_ = 0;
  PlayedActor actor_;
};

class PlayedHost {
 public:
  explicit PlayedHost(PlayedHostOptions options)
      : options_(std::move(options)),
        carrier_(loop_.io, std::chrono::milliseconds(1),
                 [this](const wire::MuxFrames& carried) { link_->send(carried); }) {
    control::ConnectionOptions link = loop_.link(options_.endpoint);
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
  struct Running {
    std::uint32_t id = 0;
    std::uint64_t incarnation = 0;
    std::unique_ptr<MuxActor> actor;
  };

  void on_message(const wire::Header& header, std::span<const std::byte> payload) {
    if (header.kind == wire::Kind::mux_frames) {
      for (auto& entry : wire::decode<wire::MuxFrames>(payload).frames)
        hand_on(std::move(entry));
    } else if (header.kind == wire::Kind::start_process) {
      const auto order = wire::decode<wire::StartProcess>(payload);
      link_->reply(header, wire::ProcessStarted{static_cast<std::uint32_t>(getpid())});
      const auto slot = ++last_slot_;
      const auto id = static_cast<std::uint32_t>(order.owner.id);
      actors_[slot] = {
          id, order.incarnation,
          std::make_unique<MuxActor>(loop_, carrier_, slot, order.incarnation,
                                     PlayedActorOptions{id, order.token, options_.task_seconds})};
    } else if (header.kind == wire::Kind::shutdown) {
      stopping_ = true;
      leave_if_empty();
    }
  }

  void hand_on(wire::MuxFrame entry) {
    const auto slot = entry.slot;
    const auto frame = arriving_.take(std::move(entry));
    const auto found = actors_.find(slot);
    if (!frame || found == actors_.end() || found->second.actor->take(*frame)) return;
    // An actor's link has ended: so has its process.
    carrier_.flush();
    const auto gone = std::move(found->second);
    actors_.erase(found);
    link_->send(
        wire::ProcessEnded{.owner = {PeerRole::actor, gone.id}, .incarnation = gone.incarnation});
    leave_if_empty();
  }

  void leave_if_empty() {
    if (!stopping_ || !actors_.empty()) return;
    link_->close("the host leaves", wire::LinkEnd::stopped);
    loop_.io.stop();
  }

  PlayedHostOptions options_;
  Loop loop_;
  std::unique_ptr<control::Connection> link_;
  control::MuxSender carrier_;
  control::MuxReader arriving_;
  std::map<std::uint32_t, Running> actors_;  // by slot
  std::uint32_t last_slot_ = 0;
  std::string failure_;
  bool stopping_ = false;
};

/// The process that the controller starts on its own host: with a connection of its own.
class ConnectedActor final : public PlayedLink {
 public:
  ConnectedActor(Loop& loop, const std::string& endpoint, std::uint64_t incarnation,
                 const PlayedActorOptions& options)
      : actor_(loop, options, *this) {
    auto link = loop.link(endpoint);
    link.incarnation = incarnation;
    link.hello = hello_of(options);
    link_ = std::make_unique<control::Connection>(loop.io, link);
    link_->on_message(
        [this, &loop](const wire::Header& header, std::span<const std::byte> payload) {
          if (!actor_.on_message(header, payload)) loop.io.stop();
        });
    link_->on_lost([&loop](const control::Loss&) { loop.io.stop(); });
    link_->start([](const wire::Welcome&) {}, [&loop](const wire::Failure&) { loop.io.stop(); });
  }
  void send_frame(std::string frame) override { link_->send_frame(std::move(frame)); }
  void set_progress(std::uint64_t progress) override { link_->set_progress(progress); }

 private:
  std::unique_ptr<control::Connection> link_;
  PlayedActor actor_;
};

}  // namespace

void play_host(const PlayedHostOptions& options) {
  // The played host runs at low priority: on another machine it would take nothing from the
  // controller.
  if (nice(10) == -1) std::perror("nice");
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
  ConnectedActor actor(
      loop, given["--control"], std::stoull(variable("TROUPE_INCARNATION")),
      {static_cast<std::uint32_t>(std::stoul(given["--id"])), variable("TROUPE_TOKEN"), 0.001});
  loop.io.run();
  return 0;
}

}  // namespace troupe::bench
