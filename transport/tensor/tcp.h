#pragma once

#include <string>

#include "transport/tensor/pair_device.h"

namespace troupe::tensor::tcp {

/// Name of this machine's network interface that has the numeric address `host` ("lo", "eth0");
/// empty when none has.
std::string interface_of(const std::string& host);

/// Pairs over TCP, one connection for data and one for control. Nothing is encrypted: use it on a
/// network that belongs to the cluster.
class TcpDevice : public PairDevice {
 public:
  explicit TcpDevice(const DeviceOptions& options);
  Backend backend() const override { return Backend::tcp; }

 private:
  class Host;
  class Guest;
  bool needs_data_socket() const override { return true; }
  UniqueFd dial(const std::string& address, Deadline deadline) override;
  std::unique_ptr<Handshake> host(UniqueFd data, int size) override;
  std::unique_ptr<Handshake> guest(UniqueFd data) override;
};

}  // namespace troupe::tensor::tcp
