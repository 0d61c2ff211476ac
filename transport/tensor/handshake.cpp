#include "transport/tensor/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace troupe::tensor {
namespace {

constexpr char kContext[] = "troupe tensor plane 2";
constexpr char kDialler = 'D';
constexpr char kListener = 'L';

Nonce fresh_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace

Hello Hello::make(Role role, const std::string& name, int rank, int size) {
  Hello hello;
  hello.role = role;
  hello.rank = static_cast<std::uint32_t>(rank);
  hello.size = static_cast<std::uint32_t>(size);
  hello.name_length = static_cast<std::uint32_t>(std::min(name.size(), kMaxName));
  hello.nonce = fresh_nonce();
  std::memcpy(hello.name, name.data(), hello.name_length);
  return hello;
}

std::optional<std::string> Hello::objection() const {
  if (version != kVersion) {
    return "tensor-plane version " + std::to_string(version) + ", here it is " +
           std::to_string(kVersion);
  }
  if (name_length == 0 || name_length > kMaxName)
    return "the group's name has an impossible length";
  if (role != Role::control && role != Role::data) return "an unknown role";
  if (rank >= size || size > 1u << 20) return "an impossible rank";
  return std::nullopt;
}

Challenge Challenge::refusal(const std::string& reason) {
  Challenge challenge;
  challenge.length = static_cast<std::uint32_t>(std::min(reason.size(), sizeof challenge.reason));
  std::memcpy(challenge.reason, reason.data(), challenge.length);
  return challenge;
}

std::string Challenge::text() const {
  return {reason, std::min<std::size_t>(length, sizeof reason)};
}

Secret::Secret(const std::string& token) {
  if (token.empty() || token.size() > kMaxToken)
    throw std::invalid_argument("[tensor] a token has 1 to " + std::to_string(kMaxToken) +
                                " bytes, this one has " + std::to_string(token.size()));
  if (sodium_init() < 0) throw std::runtime_error("[tensor] libsodium cannot be initialised");
  crypto_generichash(key_.data(), key_.size(), reinterpret_cast<const unsigned char*>(token.data()),
                     token.size(), reinterpret_cast<const unsigned char*>(kContext),
                     sizeof kContext - 1);
}

Secret::~Secret() {
  sodium_memzero(key_.data(), key_.size());
}

Mac Secret::mac(char whose, const Hello& hello, const Nonce& listener) const {
  static_assert(std::has_unique_object_representations_v<Hello>);
  Mac mac;
  crypto_generichash_state state;
  crypto_generichash_init(&state, key_.data(), key_.size(), mac.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&whose), 1);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&hello), sizeof hello);
  crypto_generichash_update(&state, listener.data(), listener.size());
  crypto_generichash_final(&state, mac.data(), mac.size());
  return mac;
}

Challenge Secret::challenge(const Hello& hello) const {
  Challenge challenge;
  challenge.accepted = 1;
  challenge.nonce = fresh_nonce();
  challenge.proof = mac(kListener, hello, challenge.nonce);
  return challenge;
}

bool Secret::knows(const Hello& hello, const Challenge& challenge) const {
  const Mac expected = mac(kListener, hello, challenge.nonce);
  return challenge.magic == Hello::kMagic &&
         sodium_memcmp(expected.data(), challenge.proof.data(), expected.size()) == 0;
}

Proof Secret::prove(const Hello& hello, const Challenge& challenge) const {
  return {mac(kDialler, hello, challenge.nonce)};
}

bool Secret::proven(const Hello& hello, const Challenge& challenge, const Proof& proof) const {
  const Mac expected = mac(kDialler, hello, challenge.nonce);
  return sodium_memcmp(expected.data(), proof.mac.data(), expected.size()) == 0;
}

}  // namespace troupe::tensor
