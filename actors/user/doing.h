#pragma once
#include <string>

namespace troupe::runtime {

/// A small memory shared with the node agent, in which an actor's process writes what it is doing:
/// so that the cause of a death can name the method even when nothing had the time to say so.
inline constexpr std::size_t kDoingBytes = 256;

/// The process's side; does nothing where no descriptor was given.
class Doing {
 public:
  /// `descriptor` is that of the memory, inherited; negative = none.
  explicit Doing(int descriptor);
  ~Doing();
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

  void begin(const std::string& what);
  void end();

 private:
  char* memory_ = nullptr;
};

}  // namespace troupe::runtime
