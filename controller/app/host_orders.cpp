#include "controller/app/host_orders.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "base/format.h"

namespace troupe::cluster {
namespace {

/// Most lines of an actor in one message, which holds so many even of the longest lines.
constexpr std::size_t kMostLines = 400;
constexpr std::size_t kMostPlugins = 256;

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

}  // namespace

HostOrders::HostOrders(boost::asio::io_context& io, Options options, Tools tools)
    : io_(io),
      tools_(std::move(tools)),
      any_plugin_(options.any_plugin),
      check_(io, std::move(options.check)),
      processes_(io, std::move(options.processes),
                 [this](const auto& owner, auto incarnation, const ExitCause& cause) {
                   exited(owner, incarnation, cause);
                 }) {
  for (const auto& plugin : options.plugins) {
    if (!own_plugins_.emplace(file_name(plugin), plugin).second)
      throw std::runtime_error("[join] --plugin " + plugin + ": another one is called " +
                               file_name(plugin) + ", too");
  }
  processes_.on_line([this](std::uint32_t actor, const std::string& line) { wrote(actor, line); });
}

void HostOrders::wrote(std::uint32_t actor, const std::string& line) {
  if (lines_.empty())
    boost::asio::post(io_, [this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) tell_lines();
    });
  auto& lines = lines_[actor];
  lines.push_back(line);
  if (lines.size() > kMostLines) lines.pop_front();
}

void HostOrders::tell_lines() {
  for (const auto& [actor, lines] : std::exchange(lines_, {}))
    tell(wire::ProcessWrote{actor, {lines.begin(), lines.end()}});
}

bool HostOrders::on_message(const wire::Header& header, std::span<const std::byte> payload,
                            bool leaving) {
  switch (header.kind) {
    case wire::Kind::check_plugins:
      check_plugins(header, wire::decode<wire::CheckPlugins>(payload).files);
      return true;
    case wire::Kind::start_process:
      start(header, wire::decode<wire::StartProcess>(payload), leaving);
      return true;
    case wire::Kind::signal_process:
      signal(wire::decode<wire::SignalProcess>(payload));
      return true;
    default:
      return false;
  }
}

void HostOrders::start(const wire::Header& header, wire::StartProcess order, bool leaving) {
  if (leaving)
    return reply(header, wire::Failure{wire::FailureCode::refused, "the host is leaving"});
  try {
    if (order.owner.role == PeerRole::actor)
      order.keys = tools_.keys();
    else
      order.user.plugin = plugin_here(order.user.plugin);
    reply(header, wire::ProcessStarted{processes_.start(order)});
  } catch (const std::exception& error) {
    reply(header, wire::Failure{wire::FailureCode::internal, error.what()});
  }
}

void HostOrders::signal(const wire::SignalProcess& order) {
  if (order.incarnation != processes_.newest(order.owner)) return;
  if (order.signal == SIGKILL) return processes_.end(order.owner, order.why);
  processes_.signal(order.owner, order.signal);
}

void HostOrders::exited(const ProcessOwner& owner, std::uint64_t incarnation,
                        const ExitCause& cause) {
  tell_lines();  // its last words come first
  tell(wire::ProcessEnded{.owner = owner,
                          .incarnation = incarnation,
                          .by_signal = cause.by_signal,
                          .number = cause.number,
                          .core = cause.core,
                          .log = cause.log,
                          .method = cause.method});
  if (tools_.on_exit) tools_.on_exit();
}

void HostOrders::check_plugins(const wire::Header& header, const std::vector<std::string>& files) {
  for (const auto& [name, own] : own_plugins_) {
    const bool known =
        std::ranges::any_of(files, [&](const auto& file) { return file_name(file) == name; });
    if (!known)
      return tools_.refuse("--plugin " + own +
                           ": the cluster was started without a plugin called " + name);
  }
  if (files.size() > kMostPlugins)
    return reply(header, wire::Failure{wire::FailureCode::refused,
                                       fmt::format("[plugin] {} files to look at: at most {}",
                                                   files.size(), kMostPlugins)});
  check_next(std::make_shared<Checking>(Checking{header, files, {}}));
}

/// Checks the next plugin, each in a process of its own, one after another; then the controller is
/// told of all.
void HostOrders::check_next(const std::shared_ptr<Checking>& checking) {
  auto& reports = checking->checked.reports;
  if (reports.size() == checking->files.size()) return reply(checking->header, checking->checked);
  std::string file = checking->files[reports.size()];
  try {
    file = plugin_here(file);
    check_.describe(file, [this, checking](wire::PluginReport report) {
      checking->checked.reports.push_back(std::move(report));
      check_next(checking);
    });
  } catch (const std::exception& error) {
    auto& report = reports.emplace_back();
    report.file = file;
    report.failure = error.what();
    check_next(checking);
  }
}

std::string HostOrders::plugin_here(const std::string& path) const {
  const auto own = own_plugins_.find(file_name(path));
  if (own != own_plugins_.end()) return own->second;
  if (any_plugin_) return path;
  throw std::runtime_error("[plugin] " + path +
                           ": `troupe join` was started on this host without " + "--plugin " +
                           file_name(path) + " (or --any-plugin)");
}

}  // namespace troupe::cluster
