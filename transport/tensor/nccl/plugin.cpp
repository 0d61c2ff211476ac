#include "transport/tensor/nccl/load_nccl.h"

#include <cstdlib>

#include "transport/tensor/nccl/nccl_group.h"
#include "transport/tensor/tcp.h"

namespace troupe::tensor::nccl {
namespace {

/// NCCL's own sockets, bootstrap included, would listen on any interface that it likes. Before its
/// first communicator; what the user has set himself stands.
void keep_to_interface(const std::string& host) {
  const std::string interface = tcp::interface_of(host);
  if (!interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), 0);
}

class NcclDevice : public Device {
 public:
  explicit NcclDevice(const DeviceOptions& options)
      : options_(options), rendezvous_(options), address_("nccl:" + rendezvous_.address()) {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (options.cuda_device < 0 || options.cuda_device >= count)
      throw std::invalid_argument("[tensor.nccl] CUDA device " +
                                  std::to_string(options.cuda_device) + " of " +
                                  std::to_string(count));
    keep_to_interface(options.host);
  }

  ~NcclDevice() override {
    // Groups leave in threads of their own; the process should not end among them.
    std::unique_lock lock(turns_->mutex);
    turns_->changed.wait_for(lock, std::chrono::seconds(5), [&] { return turns_->leaving == 0; });
  }
  Backend backend() const override { return Backend::nccl; }
  const std::string& address() const override { return address_; }

  std::unique_ptr<Group> connect(const std::string& name, int rank,
                                 const std::vector<std::string>& addresses,
                                 Deadline deadline) override {
    std::vector<std::string> inner;
    for (const std::string& address : addresses) {
      if (!address.starts_with("nccl:"))
        throw std::invalid_argument("[tensor.nccl] not an nccl address: " + address);
      inner.push_back(address.substr(5));
    }
    return std::make_unique<NcclGroup>(rendezvous_.connect(name, rank, inner, deadline),
                                       options_.cuda_device, options_.max_ctas, turns_, deadline);
  }

 private:
  DeviceOptions options_;
  tcp::TcpDevice rendezvous_;
  std::string address_;
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
};

}  // namespace
}  // namespace troupe::tensor::nccl

const char* troupe_nccl_why_unavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count > 0 ? nullptr : "there is no CUDA device";
}

troupe::tensor::Device* troupe_nccl_make_device(const troupe::tensor::DeviceOptions& options) {
  return new troupe::tensor::nccl::NcclDevice(options);
}
