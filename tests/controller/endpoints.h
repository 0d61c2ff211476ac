#pragma once
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "transport/control/blob_channel.h"
#include "transport/control/endpoint.h"
#include "transport/control/server.h"

namespace troupe::test {

/// A controller's two doors in a folder of their own, on a loop that the test turns itself. Its
/// links have the deadlines of a real one: a test that stands still for a second loses nobody.
struct Endpoints {
  boost::asio::io_context io{1};
  control::IpcFolder folder;
  control::BlobStore blobs;
  control::Server server{io, at("control")};
  control::BlobServer blob_server{io, at("blobs"), blobs};

  control::ServerOptions at(const std::string& name) const {
    control::ServerOptions options;
    options.endpoint = folder.endpoint(name);
    return options;
  }
  /// Turns the loop until it holds, for a minute at most.
  bool until(const std::function<bool()>& holds) {
    const auto end = control::Clock::now() + std::chrono::seconds(60);
    while (!holds() && control::Clock::now() < end)
      io.run_one_for(std::chrono::milliseconds(20));
    return holds();
  }
};

}  // namespace troupe::test
