#include "transport/control/accept_limiter.h"

// The C library's functions of these names, for every library of the program that this file is
// linked into, ZeroMQ above all: the accept limiter decides who stays. Nothing else can bound what
// ZeroMQ accepts: ZMQ_MAX_SOCKETS and the backlog do not count connections, a monitor tells of them
// when they are there already, and a relay before it would cost two more descriptors for each.

extern "C" __attribute__((visibility("default"))) int accept4(int listener, sockaddr* address,
                                                              socklen_t* length, int flags) {
  return troupe::control::AcceptLimiter::of_process().accept(listener, address, length, flags);
}

/// Replaces `accept` likewise: children do not inherit connections that are accepted this way,
/// either.
extern "C" __attribute__((visibility("default"))) int accept(int listener, sockaddr* address,
                                                             socklen_t* length) {
  return accept4(listener, address, length, SOCK_CLOEXEC);
}
