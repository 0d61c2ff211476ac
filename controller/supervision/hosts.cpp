#include "controller/supervision/hosts.h"

#include <signal.h>
#include <algorithm>
#include <utility>

#include "base/choices.h"
#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "controller/hosts/host_options.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {

namespace {

constexpr control::Milliseconds kStartDeadline{20'000};

}  // namespace

RemoteProcessHost::RemoteProcessHost(Environment& environment, control::PeerId peer,
                                     std::string host, OnStarted on_started, OnExit on_exit)
    : environment_(environment),
      peer_(peer),
      host_(std::move(host)),
      on_started_(std::move(on_started)),
      on_exit_(std::move(on_exit)) {}

std::uint32_t RemoteProcessHost::start(const wire::StartProcess& order) {
  auto launch = order;
  if (launch.owner.role == PeerRole::actor) launch.keys.clear();  // it shows those of its host
  processes_[launch.owner] = launch.incarnation;
  if (launch.owner.role == PeerRole::actor) lines(static_cast<std::uint32_t>(launch.owner.id));
  environment_.request(
      peer_, launch, kStartDeadline,
      [this, owner = launch.owner, incarnation = launch.incarnation](const control::Reply& reply) {
        if (reply.ok())
          return on_started_(owner, incarnation, reply.as<wire::ProcessStarted>().pid);
        if (reply.failure().code == wire::FailureCode::lost) return;  // so is its host
        // Perhaps it starts all the same, later.
        environment_.send(peer_,
                          wire::SignalProcess{owner, incarnation, SIGKILL, reply.failure().what});
        ExitCause cause{.by_signal = false, .number = 1, .log = {}};
        cause.told = "not started on " + host_ + ": " + reply.failure().what;
        gone(owner, incarnation, cause);
      });
  return 0;
}

bool RemoteProcessHost::send_signal(const ProcessOwner& owner, int signal, const std::string& why) {
  const auto process = processes_.find(owner);
  return process != processes_.end() &&
         environment_.send(peer_, wire::SignalProcess{owner, process->second, signal, why});
}

bool RemoteProcessHost::signal(const ProcessOwner& owner, int signal) {
  return send_signal(owner, signal, "");
}

void RemoteProcessHost::end(const ProcessOwner& owner, const std::string& why) {
  send_signal(owner, SIGKILL, why);
}

void RemoteProcessHost::wrote(const wire::ProcessWrote& wrote) {
  const auto log = logs_.find(wrote.actor);
  if (log == logs_.end()) return;  // no place of this host
  for (const auto& line : wrote.lines)
    log->second.add(line);
}

void RemoteProcessHost::ended(const wire::ProcessEnded& ended) {
  ExitCause cause;
  cause.by_signal = ended.by_signal;
  cause.number = ended.number;
  cause.core = ended.core;
  cause.log = ended.log;
  cause.method = ended.method;
  gone(ended.owner, ended.incarnation, cause);
}

void RemoteProcessHost::lost(const std::string& why) {
  peer_ = 0;
  ExitCause cause;
  cause.told = "lost with its host " + host_ + ": " + why;
  cause.with_host = true;
  const auto processes = processes_;
  for (const auto& [owner, incarnation] : processes)
    gone(owner, incarnation, cause);
}

void RemoteProcessHost::gone(const ProcessOwner& owner, std::uint64_t incarnation,
                             const ExitCause& cause) {
  const auto process = processes_.find(owner);
  if (process == processes_.end() || process->second != incarnation) return;
  processes_.erase(process);
  on_exit_(owner, incarnation, cause);
}

namespace {

constexpr int kMostActors = 1024;
constexpr std::size_t kLongestName = 64;
constexpr std::size_t kKeptPlaces = 64;  // of hosts that are gone

std::string attribute(const wire::Hello& hello, const std::string& name) {
  const auto found = hello.attributes.find(name);
  return found == hello.attributes.end() ? "" : found->second;
}

/// Returns how many of a host's actors share a GPU; nothing where the hello has no sensible number.
std::optional<int> sharing(const wire::Hello& hello) {
  const auto said = attribute(hello, "actors_per_gpu");
  if (said.empty()) return 1;
  const auto number = parse_number<int>(said);
  return number && *number >= 1 && *number <= kMostActors ? number : std::nullopt;
}

}  // namespace

std::optional<std::string> Hosts::hello(const control::PeerInfo& peer) const {
  const auto& name = peer.hello.name;
  const auto actors = parse_number<int>(attribute(peer.hello, "actors"));
  const auto device = attribute(peer.hello, "device");
  if (name.empty() || name.size() > kLongestName || parse_number<int>(name))
    return "host \"" + name.substr(0, kLongestName) +
           "\": a name of 1 to 64 bytes that is no number is needed";
  if (!actors || *actors < 1 || *actors > kMostActors)
    return fmt::format("host {}: actors is not a number from 1 to {}", name, kMostActors);
  if (!parse_choice<DeviceKind>(device))
    return "host " + name + ": device is \"" + device +
           "\": " + choices_text(choice_words<DeviceKind>());
  if (!sharing(peer.hello))
    return fmt::format("host {}: actors_per_gpu is not a number from 1 to {}", name, kMostActors);
  const auto known = others_.find(name);
  const bool here = known != others_.end() && known->second->peer() != 0;
  if (here || name == tools_.own_host)
    return "host " + name + " is in the cluster already: join under another --name";
  return std::nullopt;
}

std::optional<control::PeerId> Hosts::gone_before(const control::PeerInfo& peer) {
  const auto known = others_.find(peer.hello.name);
  if (known == others_.end() || known->second->peer() == 0) return std::nullopt;
  const auto holder = known->second->peer();
  const wire::Notice notice{fmt::format("pid {} of {} asks to join as {} as well", peer.hello.pid,
                                        peer.hello.host, peer.hello.name)};
  return tools_.server.send(holder, notice) ? std::nullopt : std::optional(holder);
}

bool Hosts::ready(control::PeerId peer) {
  const auto info = tools_.server.info(peer);
  if (!info || info->hello.role != PeerRole::node) return false;
  const auto& name = info->hello.name;
  if (hello(*info)) {  // two of one name at the same moment
    tools_.server.drop(peer, "host " + name + " is in the cluster already");
    return true;
  }
  others_[name] = std::make_unique<RemoteProcessHost>(tools_.environment, peer, name,
                                                      tools_.on_started, tools_.on_exit);
  make_places(name, info->hello);
  return true;
}

void Hosts::make_places(const std::string& host, const wire::Hello& hello) {
  const int actors = *parse_number<int>(attribute(hello, "actors"));
  const auto kind = attribute(hello, "device");
  std::vector<ActorId> places;
  for (const auto& [id, actor] : tools_.members.all()) {
    // Of a host that was here before.
    if (actor.host == host && actor.state == ActorState::dead &&
        to_string(actor.device_kind()) == kind && static_cast<int>(places.size()) < actors)
      places.push_back(id);
  }
  for (const ActorId id : places)
    tools_.members.reopen(id);
  const auto forgettable = tools_.members.forgettable(
      [this](const std::string& name) { return of_host(name) != nullptr; }, kKeptPlaces);
  for (auto next = forgettable.begin(); static_cast<int>(places.size()) < actors;) {
    if (next == forgettable.end()) {
      places.push_back(tools_.members.add(host, kind, /*remote=*/true).id);
      continue;
    }
    tools_.members.move(*next, host, kind);
    places.push_back(*next++);
  }
  // With them, what the processes of their hosts have written.
  std::erase_if(others_, [this](const auto& entry) {
    const auto& all = tools_.members.all();
    return entry.second->peer() == 0 && entry.second->running() == 0 &&
           std::ranges::none_of(
               all, [&](const auto& place) { return place.second.host == entry.first; });
  });
  const auto limit = parse_number<std::uint64_t>(attribute(hello, "memory_limit"));
  for (const ActorId id : places) {
    tools_.members.use_device(id,
                              device_of(kind, tools_.members.at(id).local_rank, *sharing(hello)));
    tools_.members.limit_memory(id, limit);
    tools_.spawn(id);
  }
}

bool Hosts::lost(control::PeerId peer, const control::Loss& loss) {
  RemoteProcessHost* agent = by_peer(peer);
  if (!agent) return false;
  const auto& actors = tools_.members.all();
  const bool emptied = std::none_of(actors.begin(), actors.end(), [&](const auto& entry) {
    return entry.second.host == agent->host() && entry.second.state != ActorState::dead;
  });
  // Who drains and then says goodbye leaves in order, and so does who answers a goodbye.
  if (!parting_ && (!emptied || loss.end != wire::LinkEnd::stopped))
    tools_.note("host " + agent->host() +
                (loss.end == wire::LinkEnd::stopped ? " left: " : " is lost: ") + loss.why);
  // None of them is counted on while the others' ends are told.
  tools_.members.host_lost(agent->host(),
                           "was lost with its host " + agent->host() + ": " + loss.why);
  agent->lost(loss.why);
  return true;
}

void Hosts::handle(control::PeerId peer, const wire::ProcessWrote& report) {
  if (auto* agent = by_peer(peer)) agent->wrote(report);
}

void Hosts::handle(control::PeerId peer, const wire::ProcessEnded& report) {
  if (auto* agent = by_peer(peer)) agent->ended(report);
}

ProcessHost& Hosts::of_actor(ActorId id) {
  const Actor& actor = tools_.members.at(id);
  const auto other = actor.remote ? others_.find(actor.host) : others_.end();
  return other == others_.end() ? own_ : *other->second;
}

ProcessHost* Hosts::of_host(const std::string& name) {
  if (name == tools_.own_host) return &own_;
  const auto other = others_.find(name);
  return other == others_.end() || other->second->peer() == 0 ? nullptr : other->second.get();
}

std::size_t Hosts::running() const {
  std::size_t sum = own_.running();
  for (const auto& [name, agent] : others_)
    sum += agent->running();
  return sum;
}

std::size_t Hosts::connected() const {
  return static_cast<std::size_t>(std::count_if(
      others_.begin(), others_.end(), [](const auto& entry) { return entry.second->peer() != 0; }));
}

std::optional<std::vector<ActorId>> Hosts::places(const std::string& name) const {
  std::vector<ActorId> found;
  const auto id = parse_number<int>(name);
  for (const auto& [place, actor] : tools_.members.all()) {
    if (id ? static_cast<int>(place) == *id : actor.host == name) found.push_back(place);
  }
  if (found.empty()) return std::nullopt;
  return found;
}

void Hosts::dismiss() {
  for (const auto& [name, agent] : others_) {
    if (agent->peer() != 0) tools_.server.send(agent->peer(), wire::Shutdown{});
  }
}

void Hosts::say_goodbye(const std::string& why) {
  parting_ = true;
  for (const auto& [name, agent] : others_) {
    if (agent->peer() != 0) tools_.server.send(agent->peer(), wire::Goodbye{why});
  }
}

std::optional<std::string> Hosts::name_of(control::PeerId peer) const {
  const auto* agent = by_peer(peer);
  if (!agent) return std::nullopt;
  return agent->host();
}

RemoteProcessHost* Hosts::by_peer(control::PeerId peer) const {
  for (const auto& [name, agent] : others_) {
    if (agent->peer() == peer && peer != 0) return agent.get();
  }
  return nullptr;
}

}  // namespace troupe::cluster
