#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "transport/tensor/fd.h"
#include "transport/tensor/handshake.h"

namespace troupe::tensor {

/// The answer to a control connection that has come in.
struct Answer {
  std::uint32_t accepted = 0;
  std::uint32_t length = 0;
  std::uint64_t ring_bytes = 0;
  char reason[240] = {};

  static Answer refusal(const std::string& reason);
  std::string text() const;
};

/// The dialler's half of the handshake on a connected, non-blocking socket. Throws
/// std::system_error; returns the other side's reason where it refuses, else nothing.
std::optional<std::string> introduce(int socket, const Secret& secret, const Hello& hello,
                                     Deadline deadline);

/// Listens for members that join groups, turns away those that do not prove to know the secret, and
/// keeps the others until the group that they name is connected here too.
///
/// Who has not proven it within a few seconds is dropped; of too many at once, the one that came
/// first. So strangers who connect and stay silent keep nobody out.
class Rendezvous {
 public:
  /// Connections that have not proven anything yet, at a time, and the time of each.
  static constexpr std::size_t kMaxGuests = 64;
  static constexpr std::chrono::seconds kProofLimit{5};

  /// `listener` is a listening, non-blocking socket. With `same_user`, only processes of this user
  /// come in.
  Rendezvous(boost::asio::io_context& io, UniqueFd listener, Secret secret, bool same_user,
             std::chrono::seconds proof_limit = kProofLimit);
  ~Rendezvous();

  struct Arrival {
    UniqueFd socket;
    Hello hello;
  };
  /// The connection that `rank` made for the group `name`. Throws std::system_error: ETIMEDOUT, or
  /// ECANCELED when the group was given up.
  Arrival claim(const std::string& name, int rank, Hello::Role role, Deadline deadline);
  /// Ends all waits for groups whose names end with this, now or later.
  void give_up(const std::string& suffix);

 private:
  struct Shared;
  struct Guest;
  static void accept_next(const std::shared_ptr<Shared>& shared);
  static void accept_later(const std::shared_ptr<Shared>& shared);
  static void greet(const std::shared_ptr<Shared>& shared, UniqueFd socket);
  static void challenge(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Guest>& guest);
  static void admit(const std::shared_ptr<Shared>& shared, Guest& guest);

  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::tensor
