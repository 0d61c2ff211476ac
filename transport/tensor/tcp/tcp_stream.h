#pragma once

#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>

#include "transport/tensor/engine.h"
#include "transport/tensor/pair_group.h"

namespace troupe::tensor::tcp {

/// A pair's bytes over a connected, non-blocking TCP socket, watched by the engine's io_context.
class TcpStream : public Stream {
 public:
  TcpStream(Engine& engine, UniqueFd socket);
  ~TcpStream() override;
  std::size_t write(Part first, Part second) override;
  std::size_t read(Part first, Part second) override;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::tensor::tcp
