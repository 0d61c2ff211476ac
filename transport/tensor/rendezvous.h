#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "transport/tensor/fd.h"

namespace troupe::tensor {

/// The first bytes on every connection, from the side that dialled.
struct Hello {
  static constexpr std::uint32_t kMagic = 0x45505254;
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kMaxToken = 128;
  static constexpr std::size_t kMaxName = 255;
  enum class Role : std::uint32_t { control = 0, data = 1 };

  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  Role role = Role::control;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t ring_bytes = 0;
  std::uint32_t token_length = 0;
  std::uint32_t name_length = 0;
  char token[kMaxToken] = {};
  char name[kMaxName + 1] = {};

  static Hello make(Role role, const std::string& token, const std::string& name, int rank,
                    int size);
};

/// The answer to a control connection's hello.
struct Answer {
  std::uint32_t accepted = 0;
  std::uint32_t length = 0;
  std::uint64_t ring_bytes = 0;
  char reason[240] = {};

  static Answer refusal(const std::string& reason);
  std::string text() const;
};

/// Listens for members that join groups, turns away those without the token, and keeps the others
/// until the group that they name is connected here too.
class Rendezvous {
 public:
  /// `listener` is a listening socket. With `same_user`, only processes of this user come in.
  Rendezvous(boost::asio::io_context& io, UniqueFd listener, std::string token, bool same_user);
  ~Rendezvous();

  struct Arrival {
    UniqueFd socket;
    Hello hello;
  };
  /// The connection that `rank` made for the group `name`. Throws std::system_error (ETIMEDOUT).
  Arrival claim(const std::string& name, int rank, Hello::Role role, Deadline deadline);

 private:
  struct Shared;
  struct Guest;
  static void accept_next(const std::shared_ptr<Shared>& shared);
  static void greet(const std::shared_ptr<Shared>& shared, UniqueFd socket);
  static void judge(const std::shared_ptr<Shared>& shared, Guest& guest);

  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::tensor
