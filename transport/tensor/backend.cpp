#include "transport/tensor/backend.h"

#include "transport/tensor/nccl/load_nccl.h"
#include "transport/tensor/shm.h"
#include "transport/tensor/tcp.h"

namespace troupe::tensor {

std::string to_string(Backend backend) {
  switch (backend) {
    case Backend::shm:
      return "shm";
    case Backend::tcp:
      return "tcp";
    case Backend::nccl:
      return "nccl";
  }
  return "?";
}

Backend backend_from(const std::string& name) {
  for (const Backend backend : {Backend::shm, Backend::tcp, Backend::nccl})
    if (to_string(backend) == name) return backend;
  if (name == "gloo")
    throw std::invalid_argument(
        "[tensor] backend gloo: LibTorch ships its library without headers, and those of another "
        "version are unsafe; tcp takes its place");
  throw std::invalid_argument("[tensor] backend " + name + ": unknown, there are shm, tcp, nccl");
}

std::string why_unavailable(Backend backend) {
  return backend == Backend::nccl ? nccl::why_unavailable() : "";
}

std::vector<Backend> available_backends() {
  std::vector<Backend> available;
  for (const Backend backend : {Backend::shm, Backend::tcp, Backend::nccl})
    if (why_unavailable(backend).empty()) available.push_back(backend);
  return available;
}

std::unique_ptr<Device> make_device(Backend backend, const DeviceOptions& options) {
  switch (backend) {
    case Backend::shm:
      return std::make_unique<shm::ShmDevice>(options);
    case Backend::tcp:
      return std::make_unique<tcp::TcpDevice>(options);
    case Backend::nccl:
      return nccl::make_device(options);
  }
  throw std::invalid_argument("[tensor] unknown backend");
}

}  // namespace troupe::tensor
