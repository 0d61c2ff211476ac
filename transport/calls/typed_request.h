#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "transport/calls/errors.h"
#include "transport/control/connection.h"

namespace troupe::calls {

/// Asks, and gives `handler` the answer as an Answer or as the public API's error. Called once,
/// within the deadline; at once where the message cannot be sent.
template <class Answer, class M>
void typed_request(control::Connection& connection, const M& message,
                   control::Milliseconds deadline, std::function<void(Result<Answer>)> handler) {
  try {
    connection.request(message, deadline, [handler](const control::Reply& reply) {
      if (!reply) return handler(to_error(reply.failure()));
      std::optional<Result<Answer>> answer;
      try {
        answer.emplace(reply.template as<Answer>());
      } catch (const wire::WireError& error) {
        answer.emplace(Error{ErrorCode::protocol, error.what()});
      }
      handler(std::move(*answer));
    });
  } catch (const wire::WireError& error) {
    handler(Error{ErrorCode::bad_request, error.what()});
  }
}

}  // namespace troupe::calls
