#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace troupe::control {

/// Prepares a program at its start: raises the soft limit of descriptors to the hard one (a million
/// at most), and makes a write beyond the limit of a file's size fail (EFBIG) instead of ending the
/// process.
void meet_limits();

/// Returns how many descriptors this process may have open (ulimit -n).
std::size_t descriptor_limit();
/// Returns how many descriptors this process has open.
std::size_t descriptors_in_use();

/// Descriptors that are kept back, so that who is turned away can be told why and nothing breaks:
/// links of strangers have one reserve to themselves (accept_limiter.h), and above it lies another
/// that no link may touch.
std::size_t descriptor_reserve();
/// Number of descriptors beyond which no new member is let in, and no process started.
std::size_t descriptors_for_members();
/// Returns whether the next link would lie beyond descriptors_for_members.
bool short_of_descriptors();
/// "of the 256 descriptors that this process may have (ulimit -n) 64 are kept in reserve, …"
std::string no_descriptors_text();

/// Descriptors that are kept for what will come soon: for half a minute, if it lives that long.
class DescriptorClaim {
 public:
  /// Makes sure that there are `now` descriptors, and `soon` more, which it keeps. Throws
  /// std::runtime_error: `what` and why.
  DescriptorClaim(const std::string& what, std::size_t now, std::size_t soon);
  ~DescriptorClaim();
  DescriptorClaim(const DescriptorClaim&) = delete;
  DescriptorClaim& operator=(const DescriptorClaim&) = delete;

 private:
  std::uint64_t number_ = 0;
};

}  // namespace troupe::control
