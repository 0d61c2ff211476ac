#pragma once

#include <array>
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
#include <optional>
#include <string>
#include <tuple>

#include "transport/tensor/fd.h"

namespace troupe::tensor {

/// Handshake by which two members of a cluster convince each other that both know its secret, which
/// itself never travels. The side that dials speaks first:
///
///   dialler                            listener
///     Hello (role, group, rank, nonce)  →
///                                       ←  Challenge (nonce, proof over hello and both nonces)
///     Proof (over hello and both nonces) →
///
/// A proof is a keyed BLAKE2b (libsodium) of what was said and of whose proof it is, so neither
/// side's can be given back to it, and nothing recorded counts a second time. What follows on the
/// connection is neither encrypted nor authenticated. Messages have fixed sizes; host byte order,
/// as everything on the tensor plane.

using Nonce = std::array<std::uint8_t, 32>;
using Mac = std::array<std::uint8_t, 32>;

/// The first bytes on every connection, from the side that dialled.
struct Hello {
  static constexpr std::uint32_t kMagic = 0x45505254;
  static constexpr std::uint32_t kVersion = 2;
  static constexpr std::size_t kMaxName = 255;
  enum class Role : std::uint32_t { control = 0, data = 1 };

  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  Role role = Role::control;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t name_length = 0;
  Nonce nonce{};
  char name[kMaxName + 1] = {};

  /// Makes a hello with a fresh nonce. `name` has at most kMaxName bytes.
  static Hello make(Role role, const std::string& name, int rank, int size);

  /// True if this is not a hello of ours at all: nothing is worth answering.
  bool is_foreign() const { return magic != kMagic; }
  /// Returns why the hello cannot be dealt with.
  std::optional<std::string> objection() const;
  /// Returns the group's name in a hello without objection.
  std::string group() const { return {name, name_length}; }
};

/// The listener's answer to a hello.
struct Challenge {
  std::uint32_t magic = Hello::kMagic;
  std::uint32_t accepted = 0;  // else `reason` says why not
  Nonce nonce{};
  Mac proof{};
  std::uint32_t length = 0;
  char reason[236] = {};

  static Challenge refusal(const std::string& reason);
  std::string text() const;
};

/// The dialler's last word.
struct Proof {
  Mac mac{};
};

/// The cluster's secret, which both must know, kept as a key derived from it.
class Secret {
 public:
  static constexpr std::size_t kMaxToken = 128;

  /// Throws std::invalid_argument unless `token` has 1 to kMaxToken bytes.
  explicit Secret(const std::string& token);
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;

  Challenge challenge(const Hello& hello) const;
  /// Returns whether the listener knows the secret.
  bool knows(const Hello& hello, const Challenge& challenge) const;
  Proof prove(const Hello& hello, const Challenge& challenge) const;
  /// Returns whether the dialler knows the secret. Takes the same time for every wrong proof.
  bool proven(const Hello& hello, const Challenge& challenge, const Proof& proof) const;

 private:
  Mac mac(char whose, const Hello& hello, const Nonce& listener) const;

  std::array<std::uint8_t, 32> key_{};
};

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
