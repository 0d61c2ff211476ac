#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace troupe::testing {

/// A wire of tcp with a test's hand on it: passes on what comes to 127.0.0.1:port() to the server
/// at 127.0.0.1:`server_port`, and the other way. With two `doors` port()+1 leads to
/// `server_port`+1 over the same wire. Its methods are for the test's thread.
class Wire {
 public:
  explicit Wire(std::uint16_t server_port, int doors = 1);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  std::uint16_t port() const;
  std::string endpoint() const { return "tcp://127.0.0.1:" + std::to_string(port()); }

  /// Delays what comes from now on.
  void delay(std::chrono::milliseconds by);
  /// Limits the rate: bits per second each way, all connections together; 0 = as fast as it goes.
  void throttle(std::uint64_t bits_per_second);
  /// Takes what goes to the server without passing it on.
  void swallow();
  std::size_t swallowed() const;
  /// Replays bytes, once on every connection each way: of the next bytes the last `count` come a
  /// second time.
  void replay(std::size_t count);
  /// Truncates, once on every connection each way: of the next bytes the first half arrives, then
  /// the connection ends.
  void truncate();
  /// Returns how often something was replayed or truncated.
  std::size_t struck() const;
  /// Ends all connections; new ones pass unharmed, or are not had at all.
  void cut(bool for_good = false);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::testing
