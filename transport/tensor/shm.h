#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/tensor/engine.h"
#include "transport/tensor/pair_device.h"
#include "transport/tensor/pair_group.h"

namespace troupe::tensor::shm {

/// One directed ring of bytes in shared memory, with one writing and one reading process.
struct RingControl {
  alignas(128) std::atomic<std::uint64_t> written;       ///< bytes ever written
  alignas(128) std::atomic<std::uint64_t> read;          ///< bytes ever read
  alignas(128) std::atomic<std::uint64_t> data_wanted;   ///< the reader asks to be rung
  alignas(128) std::atomic<std::uint64_t> space_wanted;  ///< bytes of room the writer waits for
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(RingControl) <= 4096);

/// A view of a ring: its control page, followed by `capacity` bytes, a power of two.
class Ring {
 public:
  static constexpr std::size_t kControlBytes = 4096;
  static std::size_t bytes_for(std::size_t capacity) { return kControlBytes + capacity; }

  Ring(std::byte* base, std::size_t capacity)
      : control_(reinterpret_cast<RingControl*>(base)),
        data_(base + kControlBytes),
        capacity_(capacity) {}

  /// Writes what fits, publishing as it goes. When that is not all, asks for a ring.
  std::size_t write(Part first, Part second, Doorbell& reader);
  /// Reads what is there. When that is not all, asks for a ring.
  std::size_t read(Part first, Part second, Doorbell& writer);
  bool empty() const;

 private:
  std::size_t room() const;
  std::size_t available() const;
  void publish(std::uint64_t written, Doorbell& reader);

  RingControl* control_;
  std::byte* data_;
  std::size_t capacity_;
};

/// The two rings of a pair, as seen by one end.
class RingStream : public Stream {
 public:
  RingStream(Mapping mapping, std::size_t capacity, bool first_end, Doorbell peer);
  std::size_t write(Part first, Part second) override;
  std::size_t read(Part first, Part second) override;
  void peer_closed() override { peer_closed_ = true; }

 private:
  Mapping mapping_;
  Doorbell peer_;
  Ring out_;
  Ring in_;
  bool peer_closed_ = false;
};

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
