#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/tensor/group.h"

namespace troupe::tensor {

enum class Backend {
  shm,   ///< CPU tensors between processes of one host
  tcp,   ///< CPU tensors between hosts
  nccl,  ///< CUDA tensors
};

std::string to_string(Backend backend);
/// Throws std::invalid_argument for an unknown name; `gloo` is refused with its reason.
Backend backend_from(const std::string& name);

struct DeviceOptions {
  /// The secret that all members of a cluster share, at most 128 bytes. It is never sent; peers
  /// that cannot prove to know it are refused (rendezvous.h).
  std::string token;
  /// shm: bytes of each directed ring in a group of two, rounded up to a power of two; a larger
  /// group's are shorter, so that a member holds about two of them in all.
  std::size_t ring_bytes = 2u << 20;
  /// tcp, nccl: the interface to listen on, as a numeric address; and its port, 0 for any.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  /// nccl: index of the CUDA device, and the most thread blocks that one communicator may use.
  int cuda_device = 0;
  int max_ctas = 8;
};

/// A process's door to one backend: peers find it by its address, and groups are made through it.
/// Make one per process and backend. Groups may outlive their device.
class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;

  /// Returns the device's address: opaque, printable; to be handed to the other members by whoever
  /// forms the group.
  virtual const std::string& address() const = 0;

  /// Joins the group `name` as `rank`; `addresses` holds every member's, in the order of ranks.
  /// All members call this at about the same time, in any order. A name is used for one group at
  /// a time between the same devices: put the epoch into it. Throws TransferError (timeout,
  /// refused, peer_lost) naming the rank that failed, std::invalid_argument for bad arguments.
  virtual std::unique_ptr<Group> connect(const std::string& name, int rank,
                                         const std::vector<std::string>& addresses,
                                         Deadline deadline) = 0;
  /// Calls of `connect`, under way or to come, for groups whose names end with `suffix` need not
  /// wait for anybody any more: they throw. From any thread.
  virtual void give_up(const std::string& suffix) { static_cast<void>(suffix); }
};

/// Throws std::runtime_error, saying why, where the backend is not available.
std::unique_ptr<Device> make_device(Backend backend, const DeviceOptions& options);

/// Returns the backends that `make_device` can make here.
std::vector<Backend> available_backends();

/// Returns why the backend is not available; empty if it is.
std::string why_unavailable(Backend backend);

}  // namespace troupe::tensor
