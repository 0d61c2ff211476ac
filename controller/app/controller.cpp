#include "controller/app/controller.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cmath>
#include <stdexcept>

#include "base/log_line.h"
#include "controller/gateway/metrics.h"
#include "controller/hosts/capacity.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {
namespace {

constexpr std::size_t kKeptJobs = 256;
constexpr std::chrono::milliseconds kStopDeadline{1500};

journal::Calendar calendar_now() {
  const auto seconds = [](auto when) {
    return std::chrono::duration<double>(when.time_since_epoch()).count();
  };
  const auto now = seconds(control::Clock::now());
  return {seconds(std::chrono::system_clock::now()) - now, now};
}

}  // namespace

Controller::Controller(boost::asio::io_context& io, const ClusterOptions& options)
    : io_(io),
      options_(options),
      token_(control::random_secret()),
      refusals_(options.logs ? log_line : control::Refusals::Tell()),
      members_(token_),
      table_(options.max_queued_jobs, kKeptJobs),
      stop_timer_(io) {
  if (options_.actors < 1)
    throw std::runtime_error("[cluster] actors is " + std::to_string(options_.actors) +
                             ": at least 1 is needed");
  if (!parse_choice<DeviceKind>(options_.device)) {
    throw std::runtime_error("[cluster] device is \"" + options_.device + "\": cpu or cuda");
  }
  if (options_.actors_per_gpu < 1)
    throw std::runtime_error("[cluster] actors_per_gpu is " +
                             std::to_string(options_.actors_per_gpu) + ": at least 1 is needed");
  if (options_.actor_program.empty()) options_.actor_program = find_actor_program();
  open_journal();
  open_endpoints();
  make_rooms();
  make_introspection();
  agent_ = std::make_unique<NodeAgent>(
      io_, options_, [this](ActorId id, std::uint64_t incarnation, const ExitCause& cause) {
        actor_exited(id, incarnation, cause);
      });
  hosts_ = std::make_unique<Hosts>(
      Hosts::Tools{
          .server = *server_,
          .members = members_,
          .own_host = control::host_name(),
          .device = options_.device,
          .spawn = [this](ActorId id) { supervisor_->spawn(id); },
          .on_exit = [this](ActorId id, std::uint64_t incarnation,
                            const ExitCause& cause) { actor_exited(id, incarnation, cause); },
          .note = [this](const std::string& text) { gateway_->note_failure(text); }},
      *agent_);
  environment_->use([this](ActorId id) -> Agent& { return hosts_->agent_of(id); });
  make_user_actors();
  for (int i = 0; i < options_.actors; ++i) {
    auto& place =
        members_.add(control::host_name(), device_of(options_.device, i, options_.actors_per_gpu));
    if (options_.memory_limit > 0) place.memory_limit = options_.memory_limit;
    unfilled_.push_back(place.id);
  }
  fill_places();
  if (start_failure_) throw std::runtime_error(*start_failure_);
  supervisor_->watch();
  take_up_jobs();
}

Controller::~Controller() {
  for (const auto peer : server_->peer_ids())
    server_->drop(peer, "the cluster has stopped");
}

void Controller::fill_places() {
  const auto starting = [this] {
    return std::ranges::count_if(members_.all(), [](const auto& member) {
      const Actor& actor = member.second;
      return !actor.remote && actor.pid != 0 && actor.state == ActorState::starting;
    });
  };
  const int at_once = starting_at_once(local_capacity().cores);
  for (auto busy = starting(); !unfilled_.empty() && busy < at_once; ++busy) {
    if (stopping_ || start_failure_) return;
    const ActorId id = unfilled_.front();
    unfilled_.pop_front();
    Actor& place = members_.at(id);
    if (!place.accepts_jobs()) {  // drained before it had a process
      place.state = ActorState::dead;
      place.closed = true;
      continue;
    }
    try {
      supervisor_->spawn(id);
    } catch (const std::exception& error) {
      return cannot_start(error.what());
    }
  }
  check_ready();
}

void Controller::open_journal() {
  if (options_.journal.empty()) return;
  store_ = std::make_unique<journal::SqliteStore>(
      options_.journal, journal::SqliteStore::Options{.salvage = options_.journal_salvage});
  past_ = store_->past();
  journal_ = std::make_unique<journal::Journal>(
      [this](journal::Change change, journal::Journal::Done done) {
        writer_->write(std::move(change), std::move(done));
      },
      [this](control::BlobId id) { return blobs_.bytes(id); }, calendar_now());
}

void Controller::take_up_jobs() {
  if (!store_) return;
  const auto note = [this](const std::string& what) {
    if (!options_.logs) log_line(what);
    gateway_->note_failure(what);
  };
  const auto records = store_->load();
  const auto revival = journal::revive(
      records, store_->past(), calendar_now(),
      [this](control::BlobBytes bytes) { return blobs_.add(std::move(bytes)); }, table_);
  for (const auto& what : store_->notes())
    note(what);
  if (revival.clock_back > 1)
    note("[journal] this machine's clock is " + std::to_string(std::llround(revival.clock_back)) +
         " s behind the journal's newest entry; what lies later than now counts as now");
  writer_ = std::make_unique<journal::Writer>(io_, std::move(store_), note);
  gateway_->take_up(revival, journal::cause_of(past_));
  runner_->expire();
}

std::string Controller::metrics() const {
  return gateway::metrics_text({.members = members_,
                                .table = table_,
                                .runner = *runner_,
                                .recorder = recorder_,
                                .control = server_->counters(),
                                .blobs = blob_server_->counters(),
                                .turned_away = refusals_.count(),
                                .version = TROUPE_VERSION,
                                .uptime_seconds = environment_->now() - started_});
}

void Controller::actor_exited(ActorId id, std::uint64_t incarnation, const ExitCause& cause) {
  if (stopping_) return check_stopped();
  supervisor_->exited(id, incarnation, cause);
  fill_places();
}

void Controller::check_stopped() {
  if (!stopping_ || !stopped_ || hosts_->running() > 0 || users_->running() > 0) return;
  // They leave when they have read that it ends; what is unread at a connection's end is lost.
  if (awaits_hosts_ && hosts_->connected() > 0) return;
  boost::asio::post(io_, std::exchange(stopped_, nullptr));
}

void Controller::drain(control::PeerId peer, const wire::Header& header,
                       const wire::DrainPlaces& order) {
  std::set<ActorId> places;
  std::set<std::string> hosts;
  for (const auto& name : order.places) {
    const auto found = hosts_->places(name);
    if (!found) {
      server_->reply(peer, header,
                     wire::Failure{wire::FailureCode::not_found,
                                   "\"" + name + "\" is no host and no actor of this cluster"});
      return;
    }
    places.insert(found->begin(), found->end());
    hosts.insert(name);
  }
  std::string text = drainer_->drain({places.begin(), places.end()}, order.now);
  for (const auto& host : hosts) {
    const auto users = users_->drain_host(host, order.now);
    if (!users.empty()) text += "; " + users;
  }
  server_->reply(peer, header, wire::Done{text});
}

void Controller::on_ready(std::function<void(std::optional<std::string>)> handler) {
  if (start_failure_ || stopping_) {
    handler(start_failure_.value_or("the cluster was stopped"));
    return;
  }
  ready_handler_ = std::move(handler);
  check_ready();
}

void Controller::check_ready() {
  if (!ready_handler_ || !plugins_checked_) return;
  const auto drained = [](const auto& member) { return member.second.closed; };
  if (std::ranges::all_of(members_.all(), drained))
    return cannot_start("[cluster] all actors were drained before they had started");
  const bool whole = std::ranges::all_of(members_.all(), [&](const auto& member) {
    return member.second.remote || drained(member) || member.second.state == ActorState::ready;
  });
  if (whole) std::exchange(ready_handler_, nullptr)(std::nullopt);
}

void Controller::cannot_start(const std::string& why) {
  start_failure_ = why;
  if (ready_handler_) std::exchange(ready_handler_, nullptr)(why);
}

void Controller::stop(const wire::Failure& why, std::function<void()> stopped) {
  if (stopping_) return;
  gateway_->close("the cluster is stopping");
  runner_->fail_all(why);
  stopping_ = true;
  if (ready_handler_) std::exchange(ready_handler_, nullptr)(why.what);
  stopped_ = std::move(stopped);
  supervisor_->stop();
  drainer_->stop();
  for (const auto& [id, actor] : members_.all()) {
    if (actor.state == ActorState::ready)
      server_->send(actor.peer, wire::Shutdown{});
    else
      environment_->kill(id, why.what);
  }
  hosts_->dismiss();
  users_->stop();
  check_stopped();
  if (!stopped_) return;
  stop_timer_.expires_after(kStopDeadline);
  stop_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const auto& [id, actor] : members_.all())
      environment_->kill(id, "it was to leave and did not");
    awaits_hosts_ = false;
    check_stopped();
  });
}

}  // namespace troupe::cluster
