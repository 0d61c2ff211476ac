#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "web/http_message.h"

namespace troupe::web {

/// Group of callers that may use a route.
enum class Access {
  open,     // everybody that reaches the port: the page's files, health
  user,     // callers that have a key, where keys are asked for
  operate,  // callers whose key has the role operate
};

/// Form of the body that a call takes.
enum class Body { json, form, json_or_form, file };

struct Route {
  using Handler = std::function<void(const std::shared_ptr<Request>&, const ReplyPtr&)>;
  std::string method;
  std::string path;  // "/api/v1/jobs/{}/events": {} stands for one segment
  Access access = Access::user;
  std::size_t most_body = 0;  // bytes; 0 = it has none
  Handler handler;
  std::vector<std::string> query = {};  // names of what may stand behind the ?
  Body body = Body::json;
};

/// Throws ApiError for the first name behind a target's ? that the route does not read, with the
/// one that was probably meant.
void check_query(const Route& route, const RequestHead& head);
/// Throws ApiError 415 where the body is a form and the call takes none, or the other way round.
void check_body(const Route& route, const RequestHead& head);

/// Finds a request's route. Pure.
class Router {
 public:
  void add(Route route);

  struct Match {
    const Route* route = nullptr;
    std::vector<std::string> params;
    std::string allow;  // where only the method is wrong: those that there are, "GET, POST"
  };
  /// HEAD is answered as GET.
  Match match(const RequestHead& head) const;

 private:
  struct Entry {
    Route route;
    std::vector<std::string> pattern;
  };
  std::vector<Entry> entries_;
};

}  // namespace troupe::web
