#include "transport/tensor/tcp/interface.h"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <boost/asio/ip/address.hpp>
#include <cstring>
#include <memory>

namespace troupe::tensor::tcp {
namespace {

bool has_address(const sockaddr& entry, const boost::asio::ip::address& wanted) {
  if (entry.sa_family == AF_INET && wanted.is_v4()) {
    const auto bytes = wanted.to_v4().to_bytes();
    return std::memcmp(&reinterpret_cast<const sockaddr_in&>(entry).sin_addr, bytes.data(),
                       bytes.size()) == 0;
  }
  if (entry.sa_family == AF_INET6 && wanted.is_v6()) {
    const auto bytes = wanted.to_v6().to_bytes();
    return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(entry).sin6_addr, bytes.data(),
                       bytes.size()) == 0;
  }
  return false;
}

}  // namespace

std::string interface_of(const std::string& host) {
  boost::system::error_code error;
  const auto wanted = boost::asio::ip::make_address(host, error);
  ifaddrs* first = nullptr;
  if (error || ::getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, ::freeifaddrs);
  for (const ifaddrs* entry = all.get(); entry; entry = entry->ifa_next) {
    if (entry->ifa_addr && has_address(*entry->ifa_addr, wanted)) return entry->ifa_name;
  }
  return "";
}

}  // namespace troupe::tensor::tcp
