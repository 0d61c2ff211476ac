#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::web {

struct KeyHolder;

/// The beginning of a request: all but its body.
struct RequestHead {
  std::string method;                         // GET, POST, …
  std::string target;                         // as it was sent
  std::vector<std::string> path;              // its segments, decoded
  std::map<std::string, std::string> query;   // decoded; of a doubled name the last one
  std::map<std::string, std::string> fields;  // of the header, names in lower case
  std::string peer;                           // the client's address
  bool secure = false;                        // over TLS

  const std::string& field(const std::string& name) const;
  std::string path_text() const;
};

/// Memory that a request takes of what the server has for all of them, until it is dropped. Used on
/// the server's thread, dropped on any.
class RequestMemory {
 public:
  virtual ~RequestMemory() = default;
  /// Takes so many bytes from now on. False, and nothing changes, where there are none for the
  /// caller, or for anybody.
  virtual bool resize(std::size_t bytes) = 0;
};
using RequestMemoryPtr = std::shared_ptr<RequestMemory>;

struct Request {
  RequestHead head;
  std::string body;
  RequestMemoryPtr memory;  // memory counted for the body and what is made of it; never null
  std::vector<std::string> params;          // what stood in the places of a route's {}
  std::shared_ptr<const KeyHolder> caller;  // who asks; never null
};

struct Response {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields =
      {};  // of the header, beside those that every answer has
};

/// Takes `target` apart. False where it is no path, or an escape in it is none.
bool parse_target(std::string_view target, RequestHead& head);

/// "a%20b+c" decoded; `plus`: + is a space, as in queries. False for an escape that is none.
bool percent_decode(std::string_view text, bool plus, std::string& out);

/// A piece of a stream. Who waits for it holds it together with the others.
using Piece = std::shared_ptr<const std::string>;
inline Piece piece(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

/// Answer to one request: one whole answer, or a stream of pieces. All calls come on the server's
/// thread; what comes after the end, or after the client has gone, is dropped.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void send(Response response) = 0;
  /// Begins a stream with this header; `heartbeat` is sent whenever nothing else was for a while.
  virtual void begin(Response header, std::string heartbeat) = 0;
  /// A further piece, which several may be sent at once. One that `may_drop` is left out while the
  /// client reads too slowly; where it falls behind with the others, it is cut off.
  virtual void write(Piece piece, bool may_drop) = 0;
  virtual void end() = 0;
  /// Called once if the client goes away before the end.
  virtual void on_gone(std::function<void()> action) = 0;
};
using ReplyPtr = std::shared_ptr<Reply>;

/// One event of a stream: "event: NAME\ndata: DATA\n\n", each line of `data` after a "data: " of
/// its own. Source: WHATWG HTML, server-sent events.
std::string event_text(std::string_view name, std::string_view data);
/// The header that a stream of events begins with, and its heartbeat.
Response event_stream();
inline constexpr const char* kHeartbeat = ": still here\n\n";

}  // namespace troupe::web
