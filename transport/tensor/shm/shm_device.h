#pragma once

#include "transport/tensor/pair_device.h"

namespace troupe::tensor::shm {

/// Pairs over rings in anonymous memory files, passed over abstract unix sockets: nothing has a
/// name on disk, and the kernel frees everything with the last process.
class ShmDevice : public PairDevice {
 public:
  explicit ShmDevice(const DeviceOptions& options);
  Backend backend() const override { return Backend::shm; }

 private:
  class Host;
  class Guest;
  bool needs_data_socket() const override { return false; }
  UniqueFd dial(const std::string& address, Deadline deadline) override;
  std::unique_ptr<Handshake> host(UniqueFd data, int size) override;
  std::unique_ptr<Handshake> guest(UniqueFd data) override;

  std::size_t ring_bytes_;
};

}  // namespace troupe::tensor::shm
