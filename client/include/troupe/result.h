#pragma once
#include <string>
#include <utility>
#include <variant>

namespace troupe {

/// Reason why something did not work, as a value.
struct Error {
  /// Code of the error, for programs. Of the link: unreachable, version_mismatch, refused, lost,
  /// timeout, protocol. Of a request or job: bad_request, not_found, overloaded, out_of_memory,
  /// cancelled, failed. Of a call of an actor also: exception, died, restarting, unavailable.
  std::string code;
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
