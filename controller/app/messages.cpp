#include "controller/app/messages.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "base/format.h"
#include "controller/service/permissions.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {
namespace {

using control::ClientRole;

void drain(const Rooms& rooms, const Asker& asker, const wire::DrainPlaces& order) {
  std::set<ActorId> places;
  std::set<std::string> hosts;
  for (const auto& name : order.places) {
    const auto found = rooms.hosts->places(name);
    if (!found) {
      rooms.server->reply(
          asker.peer, asker.header,
          wire::Failure{wire::FailureCode::not_found,
                        "\"" + name + "\" is no host and no actor of this cluster"});
      return;
    }
    places.insert(found->begin(), found->end());
    hosts.insert(name);
  }
  std::string text = rooms.drainer->drain({places.begin(), places.end()}, order.now);
  for (const auto& host : hosts) {
    const auto users = rooms.users->drain_host(host, order.now);
    if (!users.empty()) text += "; " + users;
  }
  rooms.server->reply(asker.peer, asker.header, wire::Done{text});
}

// Who answers.

constexpr auto kTaskDone = [](const Rooms& rooms, const Asker& asker, const wire::TaskDone& done) {
  if (const auto* actor = rooms.members->by_peer(asker.peer))
    rooms.runner->task_done(actor->id, done);
};
constexpr auto kTaskFailed = [](const Rooms& rooms, const Asker& asker,
                                const wire::TaskFailed& failed) {
  if (const auto* actor = rooms.members->by_peer(asker.peer))
    rooms.runner->task_failed(actor->id, failed);
};
constexpr auto kHold = [](const Rooms& rooms, const Asker& asker, const wire::HoldChanged& hold) {
  if (const auto* actor = rooms.members->by_peer(asker.peer))
    rooms.members->hold(actor->id, hold.held);
};
constexpr auto kHosts = [](const Rooms& rooms, const Asker& asker, const auto& report) {
  rooms.hosts->handle(asker.peer, report);
};
constexpr auto kDrain = [](const Rooms& rooms, const Asker& asker, const wire::DrainPlaces& order) {
  drain(rooms, asker, order);
};
constexpr auto kUserActors = [](const Rooms& rooms, const Asker& asker, const auto& request) {
  rooms.users->actors().handle(asker, request);
};
constexpr auto kClients = [](const Rooms& rooms, const Asker& asker, auto&& request) {
  rooms.clients->handle(asker, std::forward<decltype(request)>(request));
};
constexpr auto kIntrospection = [](const Rooms& rooms, const Asker& asker, auto&& request) {
  rooms.introspection->handle(asker, std::forward<decltype(request)>(request));
};

template <class M, class Room>
constexpr Message row(Senders from, ClientRole needed, Budget budget, Room) {
  return {M::kKind, from, needed, budget,
          [](const Rooms& rooms, const Asker& asker, std::span<const std::byte> payload) {
            Room{}(rooms, asker, wire::decode<M>(payload));
          }};
}

constexpr Senders kActor{.actor = true};
constexpr Senders kHost{.host = true};
constexpr Senders kClient{.client = true};
constexpr Senders kHostOrClient{.host = true, .client = true};
constexpr auto kOwnJobs = ClientRole::own_jobs;
constexpr auto kAllJobs = ClientRole::all_jobs;
constexpr auto kOperate = ClientRole::operate;

constexpr std::array kMessages = {
    row<wire::TaskDone>(kActor, kOperate, Budget::reports, kTaskDone),
    row<wire::TaskFailed>(kActor, kOperate, Budget::reports, kTaskFailed),
    row<wire::HoldChanged>(kActor, kOperate, Budget::reports, kHold),
    row<wire::ProcessWrote>(kHost, kOperate, Budget::reports, kHosts),
    row<wire::ProcessEnded>(kHost, kOperate, Budget::reports, kHosts),

    row<wire::SubmitJob>(kClient, kOwnJobs, Budget::queued_jobs, kClients),
    row<wire::WaitJob>(kClient, kOwnJobs, Budget::open_requests, kClients),
    row<wire::CancelJob>(kClient, kOwnJobs, Budget::open_requests, kClients),
    row<wire::ListJobs>(kClient, kOwnJobs, Budget::open_requests, kClients),
    row<wire::GetStatus>(kHostOrClient, kOwnJobs, Budget::open_requests, kClients),
    row<wire::ControlJob>(kClient, kOwnJobs, Budget::open_requests, kIntrospection),
    row<wire::GetLatents>(kClient, kOwnJobs, Budget::collections, kIntrospection),
    row<wire::GetDocument>(kClient, kOwnJobs, Budget::documents, kIntrospection),

    row<wire::GetLogs>(kClient, kAllJobs, Budget::open_requests, kIntrospection),
    row<wire::SpawnActor>(kClient, kAllJobs, Budget::user_actors, kUserActors),
    row<wire::FindActor>(kClient, kAllJobs, Budget::open_requests, kUserActors),
    row<wire::KillActor>(kClient, kAllJobs, Budget::open_requests, kUserActors),
    row<wire::WatchActor>(kClient, kAllJobs, Budget::open_requests, kUserActors),
    row<wire::ListActors>(kClient, kAllJobs, Budget::open_requests, kUserActors),
    row<wire::ListClasses>(kClient, kAllJobs, Budget::open_requests, kUserActors),

    row<wire::GetMailbox>(kClient, kOperate, Budget::open_requests, kIntrospection),
    row<wire::GetTensors>(kClient, kOperate, Budget::actor_lane, kIntrospection),
    row<wire::GetSlice>(kClient, kOperate, Budget::actor_lane, kIntrospection),
    row<wire::InjectFault>(kClient, kOperate, Budget::open_requests, kIntrospection),
    row<wire::DrainPlaces>(kHostOrClient, kOperate, Budget::open_requests, kDrain),
    row<wire::StopCluster>(kClient, kOperate, Budget::open_requests, kClients),
};

const Message* find(wire::Kind kind) {
  const auto* found = std::ranges::find(kMessages, kind, &Message::kind);
  return found == kMessages.end() ? nullptr : found;
}

const char* to_string(Sender sender) {
  return sender == Sender::actor ? "an actor" : sender == Sender::host ? "a host" : "a client";
}

}  // namespace

std::span<const Message> messages() {
  return kMessages;
}

std::optional<wire::Failure> refusal(Sender sender, const control::ClientUser& user,
                                     wire::Kind kind) {
  const auto* message = find(kind);
  if (auto why = service::role_refusal(user, message ? message->needed : kOperate))
    return wire::Failure{wire::FailureCode::refused, *std::move(why)};
  if (!message)
    return wire::Failure{wire::FailureCode::protocol,
                         fmt::format("{} is not for a controller", wire::to_string(kind))};
  if (!message->from.has(sender))
    return wire::Failure{
        wire::FailureCode::protocol,
        fmt::format("{} is not for {} to send", wire::to_string(kind), to_string(sender))};
  return std::nullopt;
}

void deliver(const Rooms& rooms, Sender sender, const Asker& asker,
             std::span<const std::byte> payload) {
  // The cluster's own actors have keys that it has issued itself.
  const auto user =
      sender == Sender::actor ? control::ClientUser{} : rooms.server->user(asker.peer);
  if (const auto why = refusal(sender, user, asker.header.kind)) {
    if (asker.header.is_request()) rooms.server->reply(asker.peer, asker.header, *why);
    return;
  }
  find(asker.header.kind)->handle(rooms, asker, payload);
}

}  // namespace troupe::cluster
