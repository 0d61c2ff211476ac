#include "controller/supervision/host_figures.h"

#include <algorithm>

#include "base/numbers.h"
#include "transport/wire/session.h"

namespace troupe::cluster {
namespace {

constexpr int kSmallPings = 6;
constexpr int kLargePings = 3;
constexpr std::size_t kLargePing = 512 << 10;  // bytes
constexpr control::Milliseconds kPingDeadline{10'000};

int whole(const wire::Hello& hello, const char* name) {
  const auto said = hello.attributes.find(name);
  if (said == hello.attributes.end()) return 0;
  return std::max(parse_number<int>(said->second).value_or(0), 0);
}

/// Returns of untrusted text what may stand in a line for people.
std::string shortened(std::string text) {
  constexpr std::size_t kMost = 200;
  text.resize(std::min(text.size(), kMost));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

HostFigures::HostFigures(control::Server& server, const std::string& own, int cores)
    : server_(server) {
  hosts_[own].report.cores = cores;
}

void HostFigures::actor_came(const std::string& host, const wire::Hello& hello) {
  auto& report = hosts_[host].report;
  if (const int threads = whole(hello, "threads"); threads > 0) report.threads = threads;
  if (const auto gpu = hello.attributes.find("gpu"); gpu != hello.attributes.end())
    report.gpu = shortened(gpu->second);
  if (const auto failed = hello.attributes.find("measured.failed");
      failed != hello.attributes.end())
    report.why_not = shortened(failed->second);
  if (const auto found = plan::Measured::from(hello.attributes)) report.measured = found;
}

void HostFigures::host_joined(control::PeerId peer, const std::string& host,
                              const wire::Hello& hello) {
  // Who comes back may be another machine.
  auto& [report, from] = hosts_[host] = {};
  from = peer;
  report.cores = whole(hello, "cores");
  report.remote = true;
  ping({.peer = peer, .host = host});
}

void HostFigures::host_left(control::PeerId peer) {
  std::erase_if(hosts_, [peer](const auto& host) {
    return host.second.report.remote && host.second.peer == peer;
  });
}

void HostFigures::ping(Pings pings) {
  const bool small = pings.sent < kSmallPings;
  const wire::Ping message{std::string(small ? 1 : kLargePing, '.')};
  server_.request(
      pings.peer, message, kPingDeadline,
      [this, pings, small, start = control::Clock::now()](const control::Reply& reply) mutable {
        const auto known = hosts_.find(pings.host);
        if (known == hosts_.end() || known->second.peer != pings.peer) return;
        auto& report = known->second.report;
        if (!reply.ok()) {
          report.why_no_link = shortened(reply.failure().what);
          return;
        }
        const double took = std::chrono::duration<double>(control::Clock::now() - start).count();
        double& least = small ? pings.least : pings.bulk;
        least = least == 0 ? took : std::min(least, took);
        if (++pings.sent < kSmallPings + kLargePings) return ping(pings);
        const double sending = std::max(pings.bulk - pings.least, 1e-9);
        report.link = plan::Interconnect{pings.least / 2, 2.0 * kLargePing / sending};
      });
}

plan::Machine HostFigures::machine(const Members& members, DeviceKind device) const {
  std::map<std::string, int> places;
  for (const auto& [id, actor] : members.all()) {
    if (actor.accepts_jobs() && actor.device_kind() == device) ++places[actor.host];
  }
  std::vector<plan::HostReport> hosts;
  for (const auto& [host, actors] : places) {
    const auto known = hosts_.find(host);
    auto report = known == hosts_.end() ? plan::HostReport{} : known->second.report;
    report.name = host;
    report.actors = actors;
    hosts.push_back(std::move(report));
  }
  return plan::machine_of_hosts(device, std::move(hosts));
}

}  // namespace troupe::cluster
