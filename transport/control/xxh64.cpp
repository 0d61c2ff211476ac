#include "transport/control/xxh64.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "transport/wire/little_endian.h"

namespace troupe::control {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5u;

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

}  // namespace

Xxh64::Xxh64() : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

void Xxh64::stripe(const std::byte* at) {
  for (std::size_t i = 0; i < 4; ++i)
    lanes_[i] = mix(lanes_[i], wire::load_le<std::uint64_t>(at + 8 * i));
}

void Xxh64::update(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  total_ += bytes;
  if (pending_bytes_ > 0) {
    const std::size_t taken = std::min(bytes, kStripe - pending_bytes_);
    std::memcpy(pending_.data() + pending_bytes_, at, taken);
    pending_bytes_ += taken;
    at += taken;
    bytes -= taken;
    if (pending_bytes_ < kStripe) return;
    stripe(pending_.data());
    pending_bytes_ = 0;
  }
  for (; bytes >= kStripe; at += kStripe, bytes -= kStripe)
    stripe(at);
  if (bytes) std::memcpy(pending_.data(), at, bytes);
  pending_bytes_ = bytes;
}

std::uint64_t Xxh64::digest() const {
  std::uint64_t hash = kPrime5;
  if (total_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_)
      hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const std::byte* at = pending_.data();
  std::size_t left = pending_bytes_;
  for (; left >= 8; at += 8, left -= 8) {
    hash = std::rotl(hash ^ mix(0, wire::load_le<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ (wire::load_le<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
    left -= 4;
  }
  for (; left > 0; ++at, --left) {
    hash = std::rotl(hash ^ (std::to_integer<std::uint64_t>(*at) * kPrime5), 11) * kPrime1;
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace troupe::control
