#pragma once
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "web/http_server.h"

namespace troupe::web {

/// A key, or an address that has shown none.
struct Owner {
  std::size_t connections = 0;
  std::size_t body_bytes = 0;
};
using Owners = std::map<std::string, Owner>;

/// Returns the name of an address as an owner: of IPv6 its /64, which is what a client has.
std::string owner_of(const boost::asio::ip::address& address);

/// Requests that are ready to be served. One is at each round of the loop, and their owners take
/// turns, so that whoever asks for much waits for itself.
class Turns : public std::enable_shared_from_this<Turns> {
 public:
  explicit Turns(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  void add(const std::string& owner, std::function<void()> serve);
  void clear() { owners_.clear(); }

 private:
  struct Waiting {
    std::string owner;
    std::deque<std::function<void()>> requests;
  };
  void post();
  void serve_next();

  boost::asio::any_io_executor executor_;
  std::list<Waiting> owners_;  // the one whose turn it is first
  bool is_posted_ = false;
};

/// A connection, as the limits see it.
class ServerConnection {
 public:
  virtual ~ServerConnection() = default;
  virtual void close() = 0;
  /// Returns whether it answers only, or has answered: nothing is lost that a client could not ask
  /// for again.
  virtual bool answers() const = 0;

  std::string peer;  // the client's address
  Owners::pointer owner = nullptr;
  std::size_t body_bytes = 0;    // of the server's, while a body is read
  std::size_t unread_bytes = 0;  // of the server's, while an answer is written
  std::uint64_t turn_began = 0;  // its place in the order of all requests
};

/// State that all connections of a server have in common: who has how much of what is bounded, and
/// who gives way.
struct ServerLimits {
  explicit ServerLimits(const boost::asio::any_io_executor& executor)
      : turns(std::make_shared<Turns>(executor)) {}

  const std::shared_ptr<Turns> turns;
  ServerOptions options;
  HttpServer::Handler handler;
  ServerCounts counts;
  std::size_t body_bytes = 0;
  std::size_t unread_bytes = 0;
  std::set<ServerConnection*> all;
  std::map<std::uint64_t, ServerConnection*> waiting;  // for requests, in the order since when
  std::uint64_t last_wait = 0;
  std::uint64_t last_turn = 0;
  Owners owners;

  Owners::pointer join(const std::string& name);
  void leave(Owners::pointer owner);
  /// Drops an owner that has nothing of the server any more.
  void forget(Owners::pointer owner);

  /// Returns whether a body of that owner may take so many bytes more.
  bool has_body_room(const Owner& owner, std::size_t more) const;
  void count_body(Owners::pointer owner, std::size_t before, std::size_t after);

  /// Returns the connection that ends for a new one of `newcomer`; null: the new one does. Among
  /// those that wait for a request it is one of the owner that has most connections, the one that
  /// has waited longest. Where none waits, it is one of the owner that has most, if those are more
  /// than the newcomer's; else one of the newcomer's own whose answer is being read. Those whose
  /// answer is being read go first, and the oldest of them.
  ServerConnection* who_goes(const std::string& newcomer) const;
  /// Cuts off who holds most, until `bytes` more of that kind have room. Returns false where this
  /// is `who` itself: of the client that holds most in all, the connection with most; of equal ones
  /// the one whose request is the oldest.
  bool make_room(ServerConnection* who, std::size_t bytes, std::size_t& total, std::size_t most,
                 std::size_t ServerConnection::*held);
};

/// Counts the memory of a request whose body has come, for `owner`. It is given back on the
/// server's thread.
RequestMemoryPtr count_memory(boost::asio::any_io_executor executor,
                              std::shared_ptr<ServerLimits> limits, std::string owner,
                              std::size_t bytes);

}  // namespace troupe::web
