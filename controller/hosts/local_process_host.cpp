#include "controller/hosts/local_process_host.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cstdlib>
#include <stdexcept>

#include "base/format.h"
#include "models/spec/model_plugin.h"
#include "transport/control/endpoint.h"
#include "transport/control/types.h"

namespace troupe::cluster {
namespace {

/// Age before which a process may not have come to its hello, which tells of the device.
constexpr std::chrono::minutes kBeforeHello{2};
/// Bytes of the memory in which a user's actor says what it does.
constexpr std::size_t kDoingBytes = 256;
constexpr std::size_t kKeptUserLogs = 256;

/// Returns settings that CUDA and NCCL read when they start in an actor (docs/gpu.md tells why);
/// what the user has set himself stands. NCCL lets ranks share a GPU that take each other for other
/// hosts: then each actor has a name of its own, whatever the user has set.
std::vector<std::string> gpu_settings(std::uint64_t actor, bool shares_gpu) {
  std::vector<std::string> settings;
  for (const auto& [key, value] :
       {std::pair{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}, std::pair{"CUDA_MODULE_LOADING", "EAGER"},
        std::pair{"NCCL_RUNTIME_CONNECT", "0"}}) {
    if (std::getenv(key) == nullptr) settings.push_back(std::string(key) + "=" + value);
  }
  if (shares_gpu)
    settings.push_back(fmt::format("NCCL_HOSTID={}-troupe-actor-{}", control::host_name(), actor));
  return settings;
}

PinOptions pin_options(const HostOptions& options) {
  PinOptions pins{.how = options.pin,
                  .actors = options.actors,
                  .device = options.device,
                  .threads = options.threads_per_actor,
                  .root = options.machine_root};
  if (options.device == "cuda") {  // a pin is a GPU's
    pins.actors = options.gpus();
    pins.threads *= options.actors_per_gpu;
  }
  return pins;
}

std::uint32_t actor_of(const ProcessOwner& owner) {
  return static_cast<std::uint32_t>(owner.id);
}

}  // namespace

LocalProcessHost::LocalProcessHost(boost::asio::io_context& io, Options options, OnExit on_exit)
    : io_(io),
      options_(std::move(options)),
      on_exit_(std::move(on_exit)),
      pins_(pin_options(options_.host)) {}

LocalProcessHost::~LocalProcessHost() {
  // All at once, not one after the other.
  for (const auto& [incarnation, running] : processes_)
    running.process->kill(SIGKILL);
}

std::uint32_t LocalProcessHost::start(const wire::StartProcess& launch) {
  if (const auto there = processes_.find(launch.incarnation); there != processes_.end())
    return static_cast<std::uint32_t>(there->second.process->pid());
  const auto& owner = launch.owner;
  const bool is_actor = owner.role == PeerRole::actor;
  if (!is_actor && owner.role != PeerRole::user_actor)
    throw std::runtime_error("[process] role \"" + to_string(owner.role) +
                             "\" has no program: actor or user-actor");
  const Pin* pin = is_actor ? pins_.of(actor_of(owner), launch.device) : nullptr;
  Running running{.owner = owner, .process = nullptr, .doing = {}, .sockets = {}};
  ProcessOptions process;
  const bool is_relayed = is_actor && !options_.actor_endpoint.empty();
  process.arguments = {
      "--control", is_relayed ? options_.actor_endpoint : options_.control_endpoint,
      "--id",      std::to_string(owner.id),
      "--parent",  std::to_string(getpid())};
  // In the environment, which other users cannot read, and never on the command line, which they
  // can.
  process.environment = {"TROUPE_TOKEN=" + launch.token,
                         fmt::format("TROUPE_INCARNATION={}", launch.incarnation)};
  if (!launch.keys.empty()) process.environment.push_back("TROUPE_CONTROL_KEYS=" + launch.keys);
  if (pin) process.cpus = pin->cpus;
  if (is_actor)
    prepare_actor(launch, process);
  else
    prepare_user_actor(launch, process, running);
  running.process = std::make_unique<Process>(
      io_, process, [this, incarnation = launch.incarnation](const ExitCause& cause) {
        exited(incarnation, cause);
      });
  const auto pid = static_cast<std::uint32_t>(running.process->pid());
  if (is_actor && !measuring_)
    measuring_ = Measuring{launch.incarnation, std::chrono::steady_clock::now()};
  if (is_actor)
    running.process->say(fmt::format("-- process {} began{}", pid,
                                     pin && !running.process->pinned() ? "" : place(pin)));
  newest_[owner] = launch.incarnation;
  processes_[launch.incarnation] = std::move(running);
  return pid;
}

void LocalProcessHost::prepare_actor(const wire::StartProcess& launch, ProcessOptions& options) {
  const auto actor = actor_of(launch.owner);
  const auto& host = options_.host;
  const auto threads = std::to_string(host.threads_per_actor);
  options.program = host.actor_program;
  options.arguments.insert(options.arguments.end(), {"--blobs", options_.blob_endpoint, "--device",
                                                     launch.device, "--threads", threads});
  if (!options_.listen_host.empty())
    options.arguments.insert(options.arguments.end(), {"--tensor-host", options_.listen_host});
  if (host.cuda_graphs) options.arguments.push_back("--cuda-graphs");
  for (const auto& file : spec::user_models().files())
    options.arguments.insert(options.arguments.end(), {"--model-plugin", file.string()});
  // One of a host tells of all, and only as the host begins: later there may be jobs to disturb.
  if (!measuring_) options.arguments.push_back("--measure");
  options.environment.insert(options.environment.end(),
                             {"OMP_NUM_THREADS=" + threads, "MKL_NUM_THREADS=" + threads});
  if (launch.device.starts_with("cuda")) {
    const auto settings = gpu_settings(actor, host.actors_per_gpu > 1);
    options.environment.insert(options.environment.end(), settings.begin(), settings.end());
  }
  if (!host.log_folder.empty())
    options.log = std::filesystem::path(host.log_folder) / fmt::format("actor-{}.log", actor);
  options.on_line = [this, actor](const std::string& line) { note(actor, line); };
}

void LocalProcessHost::prepare_user_actor(const wire::StartProcess& launch, ProcessOptions& options,
                                          Running& running) const {
  const auto& user = launch.user;
  const std::string endpoint = user_endpoint(launch, "");
  const std::string blobs = user_endpoint(launch, "b");
  options.program = user.torch ? options_.host.actor_program : options_.host_program;
  options.arguments.insert(options.arguments.begin(), "--host");  // what troupe-actor looks for
  options.arguments.insert(options.arguments.end(), {"--plugin", user.plugin, "--listen", endpoint,
                                                     "--listen-blobs", blobs});
  if (user.insecure) options.arguments.push_back("--insecure");
  options.environment.push_back("TROUPE_TICKET=" + user.ticket);
  if (!user.door.empty()) options.environment.push_back("TROUPE_DOOR_KEYS=" + user.door);
  std::string gpus;
  for (const auto gpu : user.gpus)
    gpus.append(gpus.empty() ? "" : ",").append(std::to_string(gpu));
  options.environment.push_back("CUDA_VISIBLE_DEVICES=" + gpus);
  if (!options_.host.log_folder.empty()) options.log = user_log(launch.owner.id);
  running.doing = FileHandle(memfd_create("troupe-doing", MFD_CLOEXEC));
  if (running.doing && ftruncate(running.doing.get(), kDoingBytes) == 0) {
    options.inherited = running.doing.get();
    options.arguments.insert(options.arguments.end(), {"--doing", std::to_string(kInherited)});
  }
  for (const auto& each : {endpoint, blobs}) {
    if (const auto parsed = control::parse_endpoint(each); parsed.ipc)
      running.sockets.push_back(parsed.path);
  }
}

std::string LocalProcessHost::user_endpoint(const wire::StartProcess& launch,
                                            const char* suffix) const {
  const auto control = control::parse_endpoint(options_.control_endpoint);
  if (!control.ipc) {
    const auto& host = options_.listen_host;
    if (host.empty()) return "tcp://127.0.0.1:0";
    return "tcp://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":0";
  }
  const auto name =
      fmt::format("u{}.{}{}", launch.owner.id, launch.incarnation % 1'000'000, suffix);
  return "ipc://" + (control.path.parent_path() / name).string();
}

void LocalProcessHost::exited(std::uint64_t incarnation, const ExitCause& cause) {
  auto node = processes_.extract(incarnation);
  auto& running = node.mapped();
  const auto owner = running.owner;
  auto end = cause;
  if (owner.role == PeerRole::actor) {
    auto without_log = cause;
    without_log.log.clear();
    running.process->say("-- the process ended: " + without_log.text());
    if (measuring_ && measuring_->incarnation == incarnation &&
        std::chrono::steady_clock::now() - measuring_->since < kBeforeHello)
      measuring_.reset();
  } else {
    end.method = running.method();
    for (const auto& socket : running.sockets)
      unlink(socket.c_str());
    forget_old_logs(owner.id);
  }
  // Another one may fill the place already.
  if (newest(owner) == incarnation) newest_.erase(owner);
  // The process object goes after its own handler has returned.
  boost::asio::post(io_, [gone = std::shared_ptr<Process>(std::move(running.process))] {});
  on_exit_(owner, incarnation, end);
}

std::uint64_t LocalProcessHost::newest(const ProcessOwner& owner) const {
  const auto found = newest_.find(owner);
  return found == newest_.end() ? 0 : found->second;
}

std::size_t LocalProcessHost::running(PeerRole role) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      processes_, [&](const auto& entry) { return entry.second.owner.role == role; }));
}

std::string LocalProcessHost::Running::method() const {
  std::array<char, kDoingBytes> text{};
  if (!doing || pread(doing.get(), text.data(), text.size() - 1, 0) <= 0) return "";
  return text.data();
}

bool LocalProcessHost::signal(const ProcessOwner& owner, int signal) {
  bool found = false;
  for (const auto& [incarnation, running] : processes_) {
    if (running.owner != owner) continue;
    running.process->kill(signal);
    found = true;
  }
  return found;
}

void LocalProcessHost::end(const ProcessOwner& owner, const std::string& why) {
  for (const auto& [incarnation, running] : processes_) {
    if (running.owner != owner) continue;
    const auto method = running.method();
    running.process->end(why.empty() || method.empty() ? why : why + ", in " + method);
  }
}

std::string LocalProcessHost::place(const Pin* pin) const {
  if (pin) return fmt::format(" on NUMA node {}, CPUs {}", pin->node, cpu_list_text(pin->cpus));
  return pins_.why_not().empty() ? "" : " on no NUMA node of its own: " + pins_.why_not();
}

void LocalProcessHost::note(std::uint32_t actor, const std::string& line) {
  logs_[actor].add(line);
  if (on_line_) on_line_(actor, line);
}

void LocalProcessHost::forget_old_logs(std::uint64_t ended) {
  if (options_.host.log_folder.empty()) return;
  std::erase(ended_users_, ended);
  ended_users_.push_back(ended);
  if (ended_users_.size() <= kKeptUserLogs) return;
  const auto oldest = ended_users_.front();
  ended_users_.pop_front();
  for (const auto& [incarnation, running] : processes_)
    if (running.owner == ProcessOwner{PeerRole::user_actor, oldest}) return;  // it has begun anew
  unlink(user_log(oldest).c_str());
}

std::filesystem::path LocalProcessHost::user_log(std::uint64_t user_actor) const {
  return std::filesystem::path(options_.host.log_folder) /
         fmt::format("user-actor-{}.log", user_actor);
}

std::string find_actor_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = self.parent_path() / "troupe-actor";
  if (error || faccessat(AT_FDCWD, beside.c_str(), X_OK, AT_EACCESS) != 0) {
    throw std::runtime_error("[cluster] troupe-actor is not beside " + self.string() +
                             ": build it, or install both");
  }
  return beside.string();
}

std::string host_program_beside(const std::string& actor_program) {
  return std::filesystem::path(actor_program).replace_filename("troupe-host").string();
}

std::string find_host_program(const std::string& actor_program) {
  const auto beside = host_program_beside(actor_program);
  if (faccessat(AT_FDCWD, beside.c_str(), X_OK, AT_EACCESS) != 0)
    throw std::runtime_error("[plugin] troupe-host is not beside " + actor_program);
  return beside;
}

}  // namespace troupe::cluster
