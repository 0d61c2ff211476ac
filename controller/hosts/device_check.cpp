#include "controller/hosts/device_check.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <optional>
#include <stdexcept>

#include "base/format.h"
#include "controller/hosts/local_process_host.h"
#include "controller/hosts/process.h"

namespace troupe::cluster {
namespace {

constexpr std::chrono::seconds kDeadline{60};

}  // namespace

void check_device(const HostOptions& host) {
  if (host.device == "cpu") return;
  const std::string last = device_of(host.device, host.actors - 1, host.actors_per_gpu);
  ProcessOptions options;
  options.program = find_actor_program();
  options.arguments = {"--probe", last, std::to_string(getpid())};
  bool probed = false;
  options.on_line = [&](const std::string& line) { probed |= line == "troupe-probed"; };
  boost::asio::io_context io{1};
  std::optional<ExitCause> end;
  const Process process(io, options, [&](const ExitCause& cause) {
    end = cause;
    io.stop();
  });
  io.run_for(kDeadline);
  if (!end)
    throw std::runtime_error(
        fmt::format("[device] {}: no answer within {} s", last, kDeadline.count()));
  if (end->by_signal || end->number != 0 || !probed)
    throw std::runtime_error("[device] " +
                             (end->log.empty() ? last + ": " + end->text() : end->log.back()));
}

}  // namespace troupe::cluster
