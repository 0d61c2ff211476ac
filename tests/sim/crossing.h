#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::sim {

/// Something happened that must not, whatever goes wrong outside.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The tensor plane of the simulation: who waits for whom in a task, and in which order transfers
/// were sent and received on an edge. It keeps the books that the real one would hang by.
class Crossing {
 public:
  using Epoch = std::uint64_t;
  using Process = std::uint64_t;  // incarnation

  /// A member has come to a collective of its epoch; true once all of them have.
  bool meet(Epoch epoch, const std::string& what, Process who, std::size_t members);

  /// A transfer was handed to an edge, or a buffer posted for it. Both ends must agree on order.
  void sent(Epoch epoch, const std::string& edge, const std::string& what);
  void posted(Epoch epoch, const std::string& edge, const std::string& what);
  bool arrived(Epoch epoch, const std::string& edge, const std::string& what) const;

  void forget(Epoch epoch);

 private:
  struct Edge {
    std::vector<std::string> sent;
    std::vector<std::string> posted;
  };
  static void check(const std::string& name, const Edge& edge);

  std::map<std::pair<Epoch, std::string>, std::set<Process>> meetings_;
  std::map<std::pair<Epoch, std::string>, Edge> edges_;
};

}  // namespace troupe::sim
