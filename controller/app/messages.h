#pragma once
#include <optional>
#include <span>

#include "controller/jobs/job_runner.h"
#include "controller/service/client_service.h"
#include "controller/service/introspection.h"
#include "controller/supervision/drainer.h"
#include "controller/supervision/hosts.h"
#include "controller/user_actors/user_actor_service.h"
#include "transport/control/keys.h"
#include "transport/control/server.h"

namespace troupe::cluster {

/// Objects that answer messages. A test may leave out those that it sends nothing to.
struct Rooms {
  control::Server* server = nullptr;
  Members* members = nullptr;
  jobs::JobRunner* runner = nullptr;
  Drainer* drainer = nullptr;
  Hosts* hosts = nullptr;
  user::UserActorService* users = nullptr;
  service::Introspection* introspection = nullptr;
  service::ClientService* clients = nullptr;
};

/// Kind of peer that a message comes from, by what the controller itself has made of it.
enum class Sender : std::uint8_t {
  actor,   // a process at a place of the cluster
  host,    // the agent of a joined host
  client,  // everybody else, also the process of a user's actor
};

/// Set of senders.
struct Senders {
  bool actor = false;
  bool host = false;
  bool client = false;

  constexpr bool has(Sender sender) const {
    return sender == Sender::actor ? actor : sender == Sender::host ? host : client;
  }
};

/// Bound on how many messages of a kind may wait, or on what they may cost, for the page of
/// messages: the room that answers holds it, and refuses requests beyond it as overloaded. Every
/// request also counts among its peer's open ones (control::ServerOptions::open_requests).
enum class Budget : std::uint8_t {
  reports,        // no answer: as many as there are tasks, lines and processes
  open_requests,  // the peer's open requests alone
  queued_jobs,    // readings of model folders, bytes of inputs (service::Tools), the job table
  collections,    // latents that are collected at the same time, and their bytes
  documents,      // time lines that are being written
  actor_lane,     // questions about tensors that wait at one actor
  user_actors,    // user::ActorBounds
};

/// Message that peers may send to a controller.
struct Message {
  wire::Kind kind;
  Senders from;
  control::ClientRole needed;  // least role of the key that a client or a host has shown
  Budget budget;
  /// Decodes the message and has it answered. Throws wire::WireError.
  void (*handle)(const Rooms&, const Asker&, std::span<const std::byte> payload);
};

/// Returns all messages that a controller takes, each kind once.
std::span<const Message> messages();

/// Returns why this sender, with this key, may not send a message of this kind; nothing where it
/// may.
std::optional<wire::Failure> refusal(Sender sender, const control::ClientUser& user,
                                     wire::Kind kind);

/// Has a message answered, or refuses it.
void deliver(const Rooms& rooms, Sender sender, const Asker& asker,
             std::span<const std::byte> payload);

}  // namespace troupe::cluster
