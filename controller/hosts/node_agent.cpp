#include "controller/hosts/node_agent.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "base/format.h"
#include "models/spec/model_plugin.h"
#include "transport/control/types.h"

namespace troupe::cluster {
namespace {

/// Who ends younger than this may not have come to its hello, which tells of the device.
constexpr std::chrono::minutes kBeforeHello{2};

/// What CUDA and NCCL read when they start in an actor (docs/gpu.md tells why); what the user has
/// set himself stands. NCCL lets ranks share a GPU that take each other for other hosts: then each
/// actor has a name of its own, whatever the user has set.
std::vector<std::string> gpu_settings(std::uint32_t actor, bool shares_gpu) {
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

}  // namespace

NodeAgent::NodeAgent(boost::asio::io_context& io, const HostOptions& options, OnExit on_exit)
    : io_(io),
      program_(options.actor_program),
      log_folder_(options.log_folder),
      cuda_graphs_(options.cuda_graphs),
      shares_gpus_(options.actors_per_gpu > 1),
      on_exit_(std::move(on_exit)),
      pins_(pin_options(options)) {}

NodeAgent::~NodeAgent() = default;

std::uint32_t NodeAgent::spawn(const ActorLaunch& launch) {
  ProcessOptions options;
  options.program = program_;
  options.arguments = {
      "--control", launch.control_endpoint,        "--blobs",  launch.blob_endpoint,
      "--id",      std::to_string(launch.id),      "--device", launch.device,
      "--threads", std::to_string(launch.threads), "--parent", std::to_string(getpid())};
  if (!launch.tensor_host.empty())
    options.arguments.insert(options.arguments.end(), {"--tensor-host", launch.tensor_host});
  if (cuda_graphs_) options.arguments.push_back("--cuda-graphs");
  for (const auto& file : spec::user_models().files())
    options.arguments.insert(options.arguments.end(), {"--model-plugin", file.string()});
  // One of a host tells of all, and only as the host begins: later there may be jobs to disturb.
  const bool measures = !measuring_;
  if (measures) options.arguments.push_back("--measure");
  const auto threads = std::to_string(launch.threads);
  // In the environment, which other users cannot read, and never on the command line, which they
  // can.
  options.environment = {"TROUPE_TOKEN=" + launch.token,
                         fmt::format("TROUPE_INCARNATION={}", launch.incarnation),
                         "OMP_NUM_THREADS=" + threads, "MKL_NUM_THREADS=" + threads};
  if (!launch.keys.empty()) options.environment.push_back("TROUPE_CONTROL_KEYS=" + launch.keys);
  if (launch.device.starts_with("cuda")) {
    const auto settings = gpu_settings(launch.id, shares_gpus_);
    options.environment.insert(options.environment.end(), settings.begin(), settings.end());
  }
  if (!log_folder_.empty()) options.log = log_folder_ / (fmt::format("actor-{}.log", launch.id));
  options.on_line = [this, id = launch.id](const std::string& line) { note(id, line); };
  const Pin* pin = pins_.of(launch.id, launch.device);
  if (pin) options.cpus = pin->cpus;
  auto process = std::make_unique<Process>(
      io_, options,
      [this, id = launch.id, incarnation = launch.incarnation](const ExitCause& cause) {
        auto end = cause;
        end.log.clear();
        auto node = processes_.extract(id);
        node.mapped()->say("-- the process ended: " + end.text());
        if (measuring_ && measuring_->id == id && measuring_->incarnation == incarnation &&
            std::chrono::steady_clock::now() - measuring_->since < kBeforeHello)
          measuring_.reset();
        // The process object goes after its own handler has returned.
        boost::asio::post(io_, [gone = std::shared_ptr<Process>(std::move(node.mapped()))] {});
        on_exit_(id, incarnation, cause);
      });
  if (measures)
    measuring_ = Measuring{launch.id, launch.incarnation, std::chrono::steady_clock::now()};
  const auto pid = static_cast<std::uint32_t>(process->pid());
  process->say(
      fmt::format("-- process {} began{}", pid, pin && !process->pinned() ? "" : place(pin)));
  processes_[launch.id] = std::move(process);
  return pid;
}

std::string NodeAgent::place(const Pin* pin) const {
  if (pin) return fmt::format(" on NUMA node {}, CPUs {}", pin->node, cpu_list_text(pin->cpus));
  return pins_.why_not().empty() ? "" : " on no NUMA node of its own: " + pins_.why_not();
}

void NodeAgent::kill(std::uint32_t id, const std::string& why) {
  if (const auto process = processes_.find(id); process != processes_.end())
    process->second->end(why);
}

bool NodeAgent::signal(std::uint32_t id, int signal) {
  const auto process = processes_.find(id);
  if (process == processes_.end()) return false;
  process->second->kill(signal);
  return true;
}

void NodeAgent::note(std::uint32_t id, const std::string& line) {
  log_of(id)->add(line);
  if (on_line_) on_line_(id, line);
}

std::shared_ptr<LineLog> NodeAgent::log_of(std::uint32_t id) {
  auto& log = logs_[id];
  if (!log) log = std::make_shared<LineLog>();
  return log;
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

}  // namespace troupe::cluster
