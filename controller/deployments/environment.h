#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "controller/deployments/members.h"
#include "transport/control/blob_store.h"
#include "transport/control/types.h"
#include "transport/wire/codec.h"
#include "transport/wire/job.h"

namespace troupe::cluster {

/// Peer that waits for the answer to a request, and the request's header.
struct Asker {
  control::PeerId peer = 0;
  wire::Header header;
};

/// The one door through which deployments, jobs and supervision reach the world: peers, processes,
/// blobs, time. The controller stands behind it with sockets and a clock; the simulation
/// (tests/sim) with a queue of events and none. Handlers are never called from inside the call that
/// took them.
class Environment {
 public:
  virtual ~Environment() = default;

  /// Seconds on a clock that only goes forward.
  virtual double now() const = 0;
  /// Returns a random number, never 0.
  virtual std::uint64_t random() = 0;
  /// Calls `action` once, `seconds` from now. That cannot be taken back: the action looks for
  /// itself whether it is still wanted.
  virtual void after(double seconds, std::function<void()> action) = 0;
  void post(std::function<void()> action) { after(0, std::move(action)); }

  /// Same as in control::Server.
  template <class M>
  bool send(control::PeerId peer, const M& message) {
    return send_frame(peer, wire::encode_frame({}, message));
  }
  template <class M>
  void request(control::PeerId peer, const M& message, control::Milliseconds deadline,
               control::ReplyHandler handler) {
    request_frame(peer, wire::encode_frame({}, message), deadline, std::move(handler));
  }
  virtual bool send_frame(control::PeerId peer, std::string frame) = 0;
  virtual void request_frame(control::PeerId peer, std::string frame,
                             control::Milliseconds deadline, control::ReplyHandler handler) = 0;
  virtual void drop(control::PeerId peer, const std::string& why) = 0;
  /// Returns when the peer's work loop was last seen to get on, in seconds of `now`; nothing when
  /// there is no such peer.
  virtual std::optional<double> last_progress(control::PeerId peer) const = 0;

  /// Count of a peer's work loop by the heartbeats that came, with times in seconds of `now`.
  struct Pace {
    std::uint64_t count = 0;
    double changed = 0;  // when the count was first heard
    double heard = 0;    // when anything was heard last
  };
  /// Returns nothing when there is no such peer, or when nobody here counts its heartbeats.
  virtual std::optional<Pace> pace(control::PeerId) const { return std::nullopt; }

  /// Fetches a blob that the actor's process holds.
  virtual void fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                          control::Milliseconds deadline, control::BlobHandler handler) = 0;
  /// Holds a blob for others to fetch, until it is dropped.
  virtual control::BlobId keep_blob(control::BlobBytes bytes) = 0;
  virtual void drop_blob(control::BlobId id) = 0;

  /// Starts a process for the place; answers its pid. Throws std::runtime_error naming program and
  /// cause. Its end comes to Supervisor::exited.
  virtual std::uint32_t spawn(const Actor& place, std::uint64_t incarnation) = 0;
  /// Ends the place's process for sure; `why` goes into its log.
  virtual void kill(ActorId id, const std::string& why) = 0;
};

}  // namespace troupe::cluster
