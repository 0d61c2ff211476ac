#include "tests/controller/user_world.h"

#include <stdexcept>

#include "transport/wire/done.h"
#include "transport/wire/host_messages.h"

// Time, links and processes.
namespace troupe::user {

using control::PeerId;

UserWorld::UserWorld(std::uint64_t seed, std::size_t kept_dead)
    : random_(seed),
      users_({.environment = *this,
              .process_host = [this](const std::string& host) { return process_host(host); },
              .access = {"token", "", false},
              .note = {},
              .kept_dead = kept_dead}) {
  wire::ClassList classes;
  classes.classes.push_back(
      {.name = "C", .arguments = "", .methods = {}, .plugin = kPlugin, .lacking = {}});
  users_.add_classes(classes);
  users_.add_host({.name = kOwn, .cores = 3, .gpus = {0, 1}});
}

void UserWorld::after(double seconds, std::function<void()> action) {
  events_.push({now_ + seconds, ++events_made_, std::move(action)});
}

bool UserWorld::send_frame(PeerId peer, std::string frame) {
  const auto header = wire::decode_header(wire::as_bytes(frame));
  if (clients_.contains(peer)) {
    client_hears(peer, header, frame);
    return true;
  }
  const auto host = host_of_.find(peer);
  if (host == host_of_.end()) return peers_.contains(peer);
  if (header.kind == wire::Kind::signal_process) {
    const auto order = wire::decode<wire::SignalProcess>(payload(frame));
    after(chance() * 0.05, [this, order] { die(order.owner.id, order.incarnation, 9); });
  }
  return true;
}

void UserWorld::request_frame(PeerId peer, std::string frame, control::Milliseconds deadline,
                              control::ReplyHandler handler) {
  const auto header = wire::decode_header(wire::as_bytes(frame));
  if (header.kind == wire::Kind::start_process) {
    const auto order = wire::decode<wire::StartProcess>(payload(frame));
    return after(chance() * 0.05, [this, peer, order, handler] {
      if (!host_of_.contains(peer))
        return handler(control::Reply(wire::Failure{wire::FailureCode::lost, "gone"}));
      if (chance() < 0.1)
        return handler(control::Reply(wire::Failure{wire::FailureCode::internal, "no memory"}));
      begin(order.owner.id, order.incarnation, host_of_.at(peer));
      answer(handler, wire::ProcessStarted{7});
    });
  }
  // CreateActor, to a process.
  const double takes = chance() < 0.05 ? 1e9 : chance() * 0.1;
  if (takes > 1e6) {
    return after(double(deadline.count()) * 1e-3, [handler] {
      handler(control::Reply(wire::Failure{wire::FailureCode::timeout, "no answer"}));
    });
  }
  after(takes, [this, peer, handler] {
    if (!peers_.contains(peer))
      return handler(control::Reply(wire::Failure{wire::FailureCode::lost, "gone"}));
    if (chance() < 0.05)
      return handler(control::Reply(wire::Failure{wire::FailureCode::exception, "C: no"}));
    answer(handler, wire::ActorCreated{"at " + std::to_string(peers_.at(peer)), "b"});
  });
}

std::size_t UserWorld::running_elsewhere() const {
  std::size_t sum = 0;
  for (const auto& [name, other] : others_)
    sum += other->running();
  return sum;
}

cluster::ProcessHost* UserWorld::process_host(const std::string& name) {
  if (name == kOwn) return this;
  const auto other = others_.find(name);
  return other == others_.end() || other->second->peer() == 0 ? nullptr : other->second.get();
}

std::uint32_t UserWorld::start(const wire::StartProcess& launch) {
  if (chance() < 0.1) throw std::runtime_error("no memory");
  begin(launch.owner.id, launch.incarnation, kOwn);
  return 7;
}

void UserWorld::end(const wire::ProcessOwner& owner, const std::string&) {
  const auto* actor = users_.table().find(owner.id);
  after(chance() * 0.05,
        [this, id = owner.id, incarnation = actor->incarnation] { die(id, incarnation, 9); });
}

std::span<const std::byte> UserWorld::payload(const std::string& frame) {
  return wire::as_bytes(frame).subspan(wire::kHeaderSize);
}

template <class M>
void UserWorld::answer(const control::ReplyHandler& handler, const M& message) {
  const auto frame = wire::encode_frame({}, message);
  handler(control::Reply(wire::decode_header(wire::as_bytes(frame)), payload(frame)));
}

void UserWorld::note(const std::string& what) {
  constexpr std::size_t kMost = 1000;
  notes_.push_back(std::to_string(now_) + "  " + what);
  if (notes_.size() > kMost) notes_.pop_front();
}

std::string UserWorld::trace(std::size_t lines) const {
  std::string text;
  for (std::size_t i = notes_.size() > lines ? notes_.size() - lines : 0; i < notes_.size(); ++i)
    text += notes_[i] + "\n";
  return text;
}

void UserWorld::run() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    event.action();
    check_always();
  }
}

void UserWorld::begin(std::uint64_t id, std::uint64_t incarnation, const std::string& host) {
  const auto* actor = users_.table().find(id);
  for (const auto& each : users_.table().hosts()) {
    // On its way while the host began to be drained, at most.
    if (actor && each.name == host)
      must(!each.lacks.contains(actor->plugin), "a process begins on a host that lacks its plugin");
  }
  note("actor " + std::to_string(id) + " begins on " + host + " as " + std::to_string(incarnation));
  processes_[incarnation] = {id, host};
  after(0.01 + chance() * 0.1, [this, id, incarnation] {
    const auto process = processes_.find(incarnation);
    if (process == processes_.end()) return;
    const PeerId peer = ++last_peer_;
    control::PeerInfo info{.id = peer, .incarnation = incarnation, .hello = {}};
    info.hello.role = PeerRole::user_actor;
    info.hello.attributes = {{"token", "token"}, {"id", std::to_string(id)}};
    const auto* now = users_.table().find(id);
    const auto refusal = users_.hello(info);
    must(refusal.has_value() == !(now && now->has_process() && now->incarnation == incarnation),
         "a hello of a dead incarnation was taken, or a living one was refused");
    if (refusal) return after(0.01, [this, id, incarnation] { die(id, incarnation, 0); });
    peers_[peer] = incarnation;
    process->second.peer = peer;
    users_.ready(peer);
  });
}

void UserWorld::die(std::uint64_t id, std::uint64_t incarnation, int signal) {
  const auto node = processes_.extract(incarnation);
  if (node.empty()) return;
  note("the process " + std::to_string(incarnation) + " of actor " + std::to_string(id) +
       " ends, signal " + std::to_string(signal));
  const auto& process = node.mapped();
  if (process.peer != 0 && peers_.erase(process.peer) > 0 && chance() < 0.5)
    users_.lost(process.peer, "broken");
  ++deaths;
  haunt(process, incarnation);
  cluster::ExitCause how{.by_signal = signal != 0, .number = signal, .log = {}};
  how.told = "ended";
  if (process.host == kOwn) return users_.exited(id, incarnation, how);
  others_.at(process.host)
      ->ended({.owner = {PeerRole::user_actor, id},
               .incarnation = incarnation,
               .by_signal = signal != 0,
               .number = signal});
}

void UserWorld::exited(std::uint64_t id, std::uint64_t incarnation, const cluster::ExitCause& how) {
  const auto* actor = users_.table().find(id);
  const bool old = !actor || actor->incarnation != incarnation;
  const auto state = actor ? actor->state : UserActorState::dead;
  users_.exited(id, incarnation, how);
  // The word of a dead incarnation changes nothing.
  if (old && actor)
    must(actor->state == state, "the end of a dead incarnation changed its successor");
}

}  // namespace troupe::user
