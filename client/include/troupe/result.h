#pragma once
#include <array>
#include <ostream>
#include <string>
#include <utility>
#include <variant>

namespace troupe {

/// Kind of failure, for programs.
enum class ErrorCode {
  // Codes of the link to a cluster.
  unreachable,       // nobody answers at the endpoint
  version_mismatch,  // the other side speaks another version of the protocol
  refused,           // the other side will not
  lost,              // the link is lost
  timeout,           // no answer before the deadline; what was asked for goes on
  protocol,          // the answer could not be read
  // Codes of a request or a job.
  bad_request,  // makes no sense; Error::field names the member
  not_found,    // no such job, actor, model
  gone,         // of an earlier life of the cluster
  overloaded,   // a bounded queue is full; later may do
  out_of_memory,
  cancelled,
  stopped,      // its cluster was stopped
  not_fetched,  // the job has ended, and its result did not arrive
  failed,       // everything else
  // Codes of a call of a user's actor.
  exception,   // what was called threw; the text is the exception's
  died,        // the actor has ended for good
  restarting,  // the actor died and begins again; the call may have run
  // Codes of a command.
  interrupted,  // by a signal
  usage         // its options make no sense
};

/// Returns the code's name, as JSON has it: "bad_request".
inline std::string to_string(ErrorCode code) {
  constexpr std::array kNames = {"unreachable", "version_mismatch", "refused",       "lost",
                                 "timeout",     "protocol",         "bad_request",   "not_found",
                                 "gone",        "overloaded",       "out_of_memory", "cancelled",
                                 "stopped",     "not_fetched",      "failed",        "exception",
                                 "died",        "restarting",       "interrupted",   "usage"};
  static_assert(kNames.size() == static_cast<std::size_t>(ErrorCode::usage) + 1);
  return kNames.at(static_cast<std::size_t>(code));
}
inline std::ostream& operator<<(std::ostream& out, ErrorCode code) {
  return out << to_string(code);
}

/// Reason why something did not work, as a value.
struct Error {
  ErrorCode code = ErrorCode::failed;
  /// Text of the error, for people: one line that says what failed, which (job, actor, file, field)
  /// and why.
  std::string what;
  /// Name of the submission's member that is at fault, for programs; "" if it is not one alone.
  std::string field = {};

  const std::string& message() const { return what; }
};

/// A value or an Error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : content_(std::in_place_index<1>, std::move(error)) {}
  bool ok() const { return content_.index() == 0; }
  explicit operator bool() const { return ok(); }
  /// The value; throws std::bad_variant_access when there is an error instead.
  T& value() { return std::get<0>(content_); }
  const T& value() const { return std::get<0>(content_); }
  const Error& error() const { return std::get<1>(content_); }

 private:
  std::variant<T, Error> content_;
};

}  // namespace troupe
