#include "tests/sim/world.h"

#include <algorithm>
#include <cmath>

#include "controller/jobs/replan.h"
#include "tests/controller/sample_model.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"

namespace troupe::sim {
namespace {

constexpr double kHeartbeat = 0.25;  // seconds between a link's heartbeats

}  // namespace

World::World(std::uint64_t seed, Faults faults, int actors)
    : rng_(seed), faults_(faults), places_(actors), members_(kToken), table_(1000, 1000) {
  if (faults_.tight_memory) draw_limits();
  make_rooms();
}

void World::job_ended(const jobs::JobEntry& job) {
  const auto tell = [this, id = job.id, state = job.state, what = job.failure.what,
                     recoveries = job.recoveries.size()](const auto&) {
    note("job " + std::to_string(id) + " " + wire::to_string(state) + " " + what);
    recoveries_ += recoveries;
    if (++ends_[id] > 1) throw Violation("a job ended twice");
    if (state != wire::JobState::succeeded && what.empty())
      throw Violation("a job ended without a cause");
  };
  if (!journal_) return tell(std::nullopt);
  journal_->ended(job, tell);
}

void World::make_rooms() {
  door_ = std::make_unique<Door>(*this);
  if (faults_.restarts_per_job > 0) make_journal();
  deployments_ = std::make_unique<cluster::Deployments>(
      *door_, members_,
      cluster::Deployments::Events{
          .on_ready = [this](const auto& deployment) { runner_->deployment_ready(deployment); },
          .on_failed =
              [this](const auto& deployment, const auto& failure) {
                runner_->deployment_failed(deployment, failure);
              },
          .on_free = [this] { door_->post([this] { runner_->start_queued(); }); },
          .on_stuck = [this](cluster::ActorId id) { supervisor_->kill(id, "stuck"); }});
  runner_ = std::make_unique<jobs::JobRunner>(jobs::JobRunner::Tools{
      .outside = *door_,
      .members = members_,
      .deployments = *deployments_,
      .table = table_,
      .options = {.max_jobs_per_deployment = 3, .max_recoveries = faults_.empty_places ? 100 : 3},
      .on_progress =
          [this](const jobs::JobEntry& job, const auto&) {
            if (journal_) journal_->changed(job);
          },
      .on_finished = [this](const jobs::JobEntry& job) { job_ended(job); },
      .on_boundary =
          [this](const jobs::JobEntry& job) {
            if (journal_) journal_->boundary(job);
          },
      .plan_again =
          [this](const jobs::JobEntry& job, int actors) {
            const auto fits = [this](const plan::Plan& plan) {
              return !deployments_->shortage(plan);
            };
            return jobs::plan_again(job, test::sample_model(), actors,
                                    plan::machine_here("cpu", actors, 4),
                                    {members_.memory_steps(), fits});
          }});
  supervisor_ = std::make_unique<cluster::Supervisor>(cluster::Supervisor::Tools{
      .outside = *door_,
      .members = members_,
      .deployments = *deployments_,
      .runner = *runner_,
      .options = {.start_deadline = 30,
                  .task_deadline = 20,
                  .max_respawns = faults_.empty_places ? 0 : -1},
      .note = [this](const std::string& what) { note(what); },
      .on_given_up = [this](const std::string& why) { note("given up: " + why); },
      .starting_up = [] { return false; }});
  drainer_ = std::make_unique<cluster::Drainer>(
      cluster::Drainer::Tools{*door_, members_, *deployments_, *runner_});
  for (int i = 0; i < places_; ++i) {
    const auto id = members_.add("host " + std::to_string(i * faults_.hosts / places_), "cpu").id;
    if (!limits_.empty()) members_.at(id).memory_limit = limits_.at(id);
    for (;;) {
      try {
        supervisor_->spawn(id);
        break;
      } catch (const std::runtime_error&) {
        // Of the first spawn the real controller tells its user; here it is tried again.
      }
    }
  }
  supervisor_->watch();
}

World::~World() = default;

bool World::chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<>(0, 1)(rng_) < probability;
}

double World::some(double mean) {
  return mean * (0.2 + std::exponential_distribution<>(1.25)(rng_));
}

void World::loaded(cluster::ActorId id, std::uint64_t bytes) {
  ++loads_;
  if (!limits_.empty() && bytes > limits_.at(id))
    throw Violation("actor " + std::to_string(id) + " holds more weights than it may");
}

void World::note(const std::string& what) {
  notes_.push_back(std::to_string(now_) + "  " + what);
}

std::string World::trace(std::size_t lines) const {
  std::string text;
  for (std::size_t i = notes_.size() > lines ? notes_.size() - lines : 0; i < notes_.size(); ++i)
    text += notes_[i] + "\n";
  return text;
}

void World::after(double seconds, std::function<void()> action) {
  events_.push({now_ + std::max(seconds, 0.0), next_event_++, std::move(action)});
}

// Processes

std::uint32_t World::spawn(const cluster::Actor& place, std::uint64_t incarnation) {
  if (chance(faults_.failed_spawns)) throw std::runtime_error("troupe-actor cannot be started");
  note("spawn actor " + std::to_string(place.id));
  processes_[incarnation] = std::make_unique<StageActor>(*this, place.id, incarnation);
  const bool fails = chance(faults_.failed_starts);
  after(some(0.3), [this, id = place.id, incarnation, fails] {
    if (!processes_.contains(incarnation)) return;
    if (fails) return end_process(incarnation, 6);
    hello(id, incarnation);
  });
  return static_cast<std::uint32_t>(incarnation % 100'000);
}

void World::hello(cluster::ActorId id, std::uint64_t incarnation) {
  control::PeerInfo info;
  info.id = next_peer_++;
  info.incarnation = incarnation;
  info.hello.attributes = {{"token", kToken}, {"address.shm", "a"}};
  if (members_.hello(info)) return;
  peers_[info.id].incarnation = incarnation;
  supervisor_->ready(id);
}

void World::kill(cluster::ActorId id) {
  for (const auto& [incarnation, process] : processes_) {
    if (process->id() == id) {
      after(some(0.002), [this, incarnation = incarnation] { end_process(incarnation, 9); });
    }
  }
}

void World::end_process(std::uint64_t incarnation, int signal) {
  const auto found = processes_.find(incarnation);
  if (found == processes_.end()) return;
  const auto id = found->second->id();
  const auto epochs = found->second->epochs();
  note("actor " + std::to_string(id) + " dies");
  ++deaths_;
  // Events of its own may still be under way: it does nothing in them.
  found->second->hangs = true;
  std::shared_ptr<StageActor> gone(std::move(found->second));
  after(600, [gone] {});
  processes_.erase(found);
  for (const auto& [other, process] : processes_)
    process->peer_gone(epochs);
  const auto peer = peer_of(incarnation);
  const bool exit_first = rng_() % 2 == 0;
  const auto lost = [this, peer] { lose(peer, "its socket is closed"); };
  const auto exited = [this, id, incarnation, signal] {
    if (!supervisor_) return;
    supervisor_->exited(id, incarnation,
                        {.by_signal = true, .number = signal, .core = false, .log = {}});
  };
  const double late = chance(faults_.late_exits) ? some(1.5) : 0;
  after(some(0.005), exit_first && late == 0 ? std::function<void()>(exited) : lost);
  after(some(0.02) + 0.03 + late, exit_first && late == 0 ? std::function<void()>(lost) : exited);
}

std::optional<std::uint64_t> World::any_process() {
  if (processes_.empty()) return std::nullopt;
  auto chosen = processes_.begin();
  std::advance(chosen, static_cast<long>(rng_() % processes_.size()));
  return chosen->first;
}

// Links

control::PeerId World::peer_of(std::uint64_t incarnation) const {
  for (const auto& [id, peer] : peers_) {
    if (peer.incarnation == incarnation) return id;
  }
  return 0;
}

bool World::send_frame(control::PeerId peer, std::string frame) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return false;
  auto& link = found->second;
  const auto sequence = link.next_out++;
  if (chance(faults_.drops_per_message)) {
    note("a message to peer " + std::to_string(peer) + " is lost");
    // The next one shows it, at the latest a heartbeat.
    after(kHeartbeat, [this, peer, sequence, incarnation = link.incarnation] {
      const auto live = peers_.find(peer);
      if (live != peers_.end() && live->second.seen_out < sequence) end_process(incarnation, 3);
    });
    return true;
  }
  const int copies = chance(faults_.doubles_per_message) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    link.down_until = std::max(link.down_until, now_ + some(0.001));
    after(link.down_until - now_, [this, peer, sequence, frame] {
      const auto live = peers_.find(peer);
      if (live == peers_.end() || sequence <= live->second.seen_out) return;
      const bool gap = sequence != live->second.seen_out + 1;
      live->second.seen_out = sequence;
      const auto process = processes_.find(live->second.incarnation);
      if (process == processes_.end()) return;
      // An actor that misses a message of its controller ends (actors/actor_process.cpp).
      if (gap) return end_process(live->second.incarnation, 3);
      process->second->receive(frame);
    });
  }
  return true;
}

void World::request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                          control::ReplyHandler handler) {
  auto header = wire::decode_header(wire::as_bytes(frame));
  const auto correlation = header.correlation = next_call_++;
  wire::encode_header(header, std::span<std::byte, wire::kHeaderSize>(
                                  reinterpret_cast<std::byte*>(frame.data()), wire::kHeaderSize));
  calls_[correlation] = {peer, std::move(handler)};
  const auto fail = [this, correlation](wire::FailureCode code) {
    const auto call = calls_.extract(correlation);
    if (call) call.mapped().handler(control::Reply(wire::Failure{code, "no answer"}));
  };
  if (!send_frame(peer, std::move(frame)))
    return after(0, [fail] { fail(wire::FailureCode::lost); });
  after(static_cast<double>(deadline.count()) * 1e-3, [fail] { fail(wire::FailureCode::timeout); });
}

void World::fail_calls(control::PeerId peer) {
  std::vector<control::ReplyHandler> handlers;
  for (auto call = calls_.begin(); call != calls_.end();) {
    if (call->second.peer != peer) {
      ++call;
      continue;
    }
    handlers.push_back(std::move(call->second.handler));
    call = calls_.erase(call);
  }
  for (const auto& handler : handlers)
    handler(control::Reply(wire::Failure{wire::FailureCode::lost, "the link is lost"}));
}

void World::drop(control::PeerId peer, const std::string&) {
  if (peers_.erase(peer) > 0) fail_calls(peer);
}

void World::lose(control::PeerId peer, const std::string& why) {
  if (peers_.erase(peer) == 0) return;
  note("peer " + std::to_string(peer) + " lost: " + why);
  fail_calls(peer);
  if (supervisor_) supervisor_->lost(peer, why);
}

void World::from_actor(std::uint64_t incarnation, std::uint64_t correlation, std::string frame) {
  const auto peer = peer_of(incarnation);
  if (peer == 0) return;
  auto& link = peers_.at(peer);
  const auto sequence = link.next_in++;
  if (chance(faults_.drops_per_message)) {
    after(kHeartbeat, [this, peer, sequence] {
      const auto live = peers_.find(peer);
      if (live != peers_.end() && live->second.seen_in < sequence)
        lose(peer, "messages never arrived");
    });
    return;
  }
  const int copies = chance(faults_.doubles_per_message) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    link.up_until = std::max(link.up_until, now_ + some(0.001));
    after(link.up_until - now_, [this, peer, sequence, correlation, frame] {
      deliver_up(peer, sequence, correlation, frame);
    });
  }
}

void World::deliver_up(control::PeerId peer, std::uint64_t sequence, std::uint64_t correlation,
                       const std::string& frame) {
  const auto live = peers_.find(peer);
  if (live == peers_.end() || sequence <= live->second.seen_in) return;
  const bool gap = sequence != live->second.seen_in + 1;
  live->second.seen_in = sequence;
  if (gap) return lose(peer, "messages never arrived");
  const auto bytes = wire::as_bytes(frame);
  const auto header = wire::decode_header(bytes);
  const auto payload = wire::payload_of(bytes);
  if (correlation != 0) {
    const auto call = calls_.extract(correlation);
    if (!call) return;
    if (header.kind == wire::Kind::error) {
      call.mapped().handler(control::Reply(wire::decode<wire::Failure>(payload)));
    } else {
      call.mapped().handler(control::Reply(header, payload));
    }
    return;
  }
  const auto* actor = members_.by_peer(peer);
  if (!actor) return;
  if (header.kind == wire::Kind::task_done)
    runner_->task_done(actor->id, wire::decode<wire::TaskDone>(payload));
  if (header.kind == wire::Kind::task_failed)
    runner_->task_failed(actor->id, wire::decode<wire::TaskFailed>(payload));
}

std::optional<double> World::last_progress(control::PeerId peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  const auto process = processes_.find(found->second.incarnation);
  const bool works = process != processes_.end() && !process->second->stalls;
  return works ? now_ : found->second.last_progress;
}

// Blobs

void World::fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob, control::Milliseconds,
                       control::BlobHandler handler) {
  after(some(0.003), [this, incarnation, id = blob.id, handler = std::move(handler)] {
    const auto process = processes_.find(incarnation);
    const std::string* bytes =
        process == processes_.end() || process->second->hangs ? nullptr : process->second->blob(id);
    if (!bytes) return handler({nullptr, {wire::FailureCode::lost, "its holder is gone"}});
    handler({std::make_shared<const std::string>(*bytes), {}});
  });
}

control::BlobId World::keep_blob(control::BlobBytes bytes) {
  const auto id = random();
  blobs_[id] = *bytes;
  return id;
}

void World::drop_blob(control::BlobId id) {
  if (blobs_.erase(id) == 0) throw Violation("a blob was dropped twice");
}

std::optional<std::string> World::held_blob(control::BlobId id) const {
  const auto found = blobs_.find(id);
  if (found == blobs_.end()) return std::nullopt;
  return found->second;
}

}  // namespace troupe::sim
