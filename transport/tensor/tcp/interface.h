#pragma once
#include <string>

namespace troupe::tensor::tcp {

/// Name of this machine's network interface that has the numeric address `host` ("lo", "eth0");
/// empty when none has.
std::string interface_of(const std::string& host);

}  // namespace troupe::tensor::tcp
