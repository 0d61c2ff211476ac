#include "controller/user_actors/host_user_actors.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "transport/wire/host_messages.h"

namespace troupe::user {
namespace {

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

}  // namespace

HostUserActors::HostUserActors(boost::asio::io_context& io, Options options, Tools tools)
    : options_(std::move(options)),
      tools_(std::move(tools)),
      processes_(io, options_.processes,
                 [this](std::uint64_t id, std::uint64_t incarnation, const HostExit& how) {
                   // Another one may fill the place already.
                   if (const auto own = incarnations_.find(id);
                       own != incarnations_.end() && own->second == incarnation)
                     incarnations_.erase(own);
                   auto* controller = tools_.controller();
                   if (!controller) return;
                   controller->send(wire::UserProcessEnded{.id = id,
                                                           .incarnation = incarnation,
                                                           .signal = how.signal,
                                                           .code = how.code,
                                                           .how = how.how,
                                                           .method = how.method,
                                                           .log = how.log});
                 }) {
  for (const auto& plugin : options_.plugins) {
    if (!own_plugins_.emplace(file_name(plugin), plugin).second)
      throw std::runtime_error("[join] --plugin " + plugin + ": another one is called " +
                               file_name(plugin) + ", too");
  }
}

template <class M>
void HostUserActors::reply(const wire::Header& header, const M& message) {
  if (auto* controller = tools_.controller()) controller->reply(header, message);
}

bool HostUserActors::on_message(const wire::Header& header, std::span<const std::byte> payload,
                                bool leaving) {
  switch (header.kind) {
    case wire::Kind::check_plugins:
      check_plugins(header, wire::decode<wire::CheckPlugins>(payload).files);
      return true;
    case wire::Kind::start_user_process:
      start(header, wire::decode<wire::StartUserProcess>(payload), leaving);
      return true;
    case wire::Kind::end_user_process: {
      const auto order = wire::decode<wire::EndUserProcess>(payload);
      const auto process = incarnations_.find(order.id);
      if (process != incarnations_.end() && process->second == order.incarnation)
        processes_.kill(options_.host, order.id, order.why);
      return true;
    }
    default:
      return false;
  }
}

void HostUserActors::start(const wire::Header& header, const wire::StartUserProcess& order,
                           bool leaving) {
  if (leaving)
    return reply(header, wire::Failure{wire::FailureCode::refused, "the host is leaving"});
  try {
    processes_.use({order.token, order.keys, order.insecure});
    const auto pid = processes_.spawn({.id = order.id,
                                       .incarnation = order.incarnation,
                                       .host = options_.host,
                                       .plugin = plugin_here(order.plugin),
                                       .torch = order.torch,
                                       .ticket = order.ticket,
                                       .door = order.door,
                                       .gpus = order.gpus});
    incarnations_[order.id] = order.incarnation;
    reply(header, wire::ProcessStarted{pid});
  } catch (const std::exception& error) {
    reply(header, wire::Failure{wire::FailureCode::internal, error.what()});
  }
}

void HostUserActors::check_plugins(const wire::Header& header,
                                   const std::vector<std::string>& files) {
  for (const auto& [name, own] : own_plugins_) {
    const bool known =
        std::ranges::any_of(files, [&](const auto& file) { return file_name(file) == name; });
    if (!known)
      return tools_.refuse("--plugin " + own +
                           ": the cluster was started without a plugin called " + name);
  }
  check_next(std::make_shared<Checking>(Checking{header, files, {}}));
}

/// Each in a process of its own, one after another; then all are told.
void HostUserActors::check_next(const std::shared_ptr<Checking>& checking) {
  auto& reports = checking->checked.reports;
  if (reports.size() == checking->files.size()) return reply(checking->header, checking->checked);
  std::string file = checking->files[reports.size()];
  try {
    file = plugin_here(file);
    processes_.describe(file, [this, checking](wire::PluginReport report) {
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

std::string HostUserActors::plugin_here(const std::string& path) const {
  const auto own = own_plugins_.find(file_name(path));
  if (own != own_plugins_.end()) return own->second;
  if (options_.any_plugin) return path;
  throw std::runtime_error("[plugin] " + path +
                           ": `troupe join` was started on this host without " + "--plugin " +
                           file_name(path) + " (or --any-plugin)");
}

}  // namespace troupe::user
