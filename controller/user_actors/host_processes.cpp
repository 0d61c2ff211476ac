#include "controller/user_actors/host_processes.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <stdexcept>

#include "base/format.h"
#include "base/parse_number.h"
#include "transport/control/endpoint.h"

namespace troupe::user {
namespace {

constexpr std::size_t kDoingBytes = 256;
constexpr std::size_t kKeptLogs = 256;

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::size_t at = 0;
  for (;;) {
    const auto tab = line.find('\t', at);
    fields.push_back(line.substr(at, tab - at));
    if (tab == std::string::npos) return fields;
    at = tab + 1;
  }
}

/// Of the lines that `troupe-host --describe` writes; a plugin may have written between them. True
/// for the last one, without which a plugin has ended the process, in order or not.
bool read_line(const std::string& line, wire::PluginReport& report) {
  const auto fields = split(line);
  auto& list = report.classes;
  if (line == "troupe-end") return true;
  if (fields.size() == 5 && fields[0] == "troupe-class") {
    if (const auto types = parse_number<std::uint64_t>(fields[3]))
      list.classes.push_back({fields[1], fields[2], *types, fields[4] == "1", {}, report.file, {}});
  } else if (fields.size() == 2 && fields[0] == "troupe-failure") {
    report.failure = fields[1];
  } else if (fields.size() == 2 && fields[0] == "troupe-file") {
    report.contents = parse_number<std::uint64_t>(fields[1]).value_or(report.contents);
  } else if (fields.size() == 4 && fields[0] == "troupe-method" && !list.classes.empty()) {
    list.classes.back().methods.push_back({fields[1], fields[2], fields[3]});
  }
  return false;
}

/// What the process wrote last into the memory it was given.
std::string read_doing(const FileHandle& memory) {
  std::array<char, kDoingBytes> text{};
  if (!memory || pread(memory.get(), text.data(), text.size() - 1, 0) <= 0) return "";
  return text.data();
}

}  // namespace

HostProcesses::HostProcesses(boost::asio::io_context& io, Options options, OnExit on_exit)
    : io_(io), options_(std::move(options)), on_exit_(std::move(on_exit)) {}

HostProcesses::~HostProcesses() = default;

std::string HostProcesses::endpoint_for(const HostLaunch& launch, const char* suffix) const {
  const auto control = control::parse_endpoint(options_.control_endpoint);
  if (!control.ipc) {
    const auto& host = options_.listen_host;
    if (host.empty()) return "tcp://127.0.0.1:0";
    return "tcp://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":0";
  }
  const auto folder = control.path.parent_path();
  return "ipc://" +
         (folder / (fmt::format("u{}.{}{}", launch.id, launch.incarnation % 1'000'000, suffix)))
             .string();
}

std::uint32_t HostProcesses::spawn(const HostLaunch& launch) {
  if (const auto there = processes_.find(launch.incarnation); there != processes_.end())
    return static_cast<std::uint32_t>(there->second.process->pid());
  Running running;
  running.id = launch.id;
  cluster::ProcessOptions process;
  process.program = launch.torch ? options_.actor_program : options_.host_program;
  const std::string endpoint = endpoint_for(launch, "");
  const std::string blobs = endpoint_for(launch, "b");
  process.arguments = {"--host",
                       "--control",
                       options_.control_endpoint,
                       "--id",
                       std::to_string(launch.id),
                       "--plugin",
                       launch.plugin,
                       "--listen",
                       endpoint,
                       "--listen-blobs",
                       blobs,
                       "--parent",
                       std::to_string(getpid())};
  if (options_.access.insecure) process.arguments.push_back("--insecure");
  process.environment = {"TROUPE_TOKEN=" + options_.access.token, "TROUPE_TICKET=" + launch.ticket,
                         fmt::format("TROUPE_INCARNATION={}", launch.incarnation)};
  if (!options_.access.keys.empty())
    process.environment.push_back("TROUPE_CONTROL_KEYS=" + options_.access.keys);
  if (!launch.door.empty()) process.environment.push_back("TROUPE_DOOR_KEYS=" + launch.door);
  std::string gpus;
  for (const auto gpu : launch.gpus)
    gpus.append(gpus.empty() ? "" : ",").append(std::to_string(gpu));
  process.environment.push_back("CUDA_VISIBLE_DEVICES=" + gpus);
  if (!options_.log_folder.empty()) process.log = log_of(launch.id);
  running.doing = FileHandle(memfd_create("troupe-doing", MFD_CLOEXEC));
  if (running.doing && ftruncate(running.doing.get(), kDoingBytes) == 0) {
    process.inherited = running.doing.get();
    process.arguments.push_back("--doing");
    process.arguments.push_back(std::to_string(cluster::kInherited));
  }
  running.process = std::make_unique<cluster::Process>(
      io_, process,
      [this, id = launch.id, incarnation = launch.incarnation](const cluster::ExitCause& cause) {
        auto node = processes_.extract(incarnation);
        HostExit how;
        how.signal = cause.by_signal ? cause.number : 0;
        how.code = cause.by_signal ? 0 : cause.number;
        how.how = cluster::ExitCause{cause.by_signal, cause.number, cause.core, {}}.text();
        how.method = read_doing(node.mapped().doing);
        how.log = cause.log;
        for (const auto& socket : node.mapped().sockets)
          unlink(socket.c_str());
        forget_old_logs(id);
        // The process object goes after its own handler has returned.
        boost::asio::post(
            io_, [gone = std::shared_ptr<cluster::Process>(std::move(node.mapped().process))] {});
        on_exit_(id, incarnation, how);
      });
  for (const auto& each : {endpoint, blobs}) {
    if (const auto parsed = control::parse_endpoint(each); parsed.ipc)
      running.sockets.push_back(parsed.path);
  }
  const auto pid = static_cast<std::uint32_t>(running.process->pid());
  processes_[launch.incarnation] = std::move(running);
  return pid;
}

void HostProcesses::forget_old_logs(std::uint64_t ended) {
  if (options_.log_folder.empty()) return;
  std::erase(ended_, ended);
  ended_.push_back(ended);
  if (ended_.size() <= kKeptLogs) return;
  const auto oldest = ended_.front();
  ended_.pop_front();
  for (const auto& [incarnation, running] : processes_)
    if (running.id == oldest) return;  // it has begun anew
  unlink(log_of(oldest).c_str());
}

std::filesystem::path HostProcesses::log_of(std::uint64_t actor) const {
  return options_.log_folder / (fmt::format("user-actor-{}.log", actor));
}

void HostProcesses::kill(const std::string&, std::uint64_t id, const std::string& why) {
  for (const auto& [incarnation, running] : processes_) {
    if (running.id != id) continue;
    const auto method = read_doing(running.doing);
    running.process->end(why.empty() || method.empty() ? why : why + ", in " + method);
  }
}

void HostProcesses::Described::end(const std::string& why) {
  if (report.failure.empty()) report.failure = "[plugin] " + report.file + ": " + why;
  process->kill(SIGKILL);
}

void HostProcesses::describe(const std::string& plugin, OnDescribed handler) {
  if (checks_ended_)
    throw std::runtime_error("[plugin] " + plugin + ": was not looked at, this host is leaving");
  const auto number = ++last_described_;
  const auto described = std::make_shared<Described>(io_);
  described->report.file = plugin;
  cluster::ProcessOptions process;
  process.program = options_.host_program;
  process.arguments = {"--describe", plugin, "--parent", std::to_string(getpid())};
  process.on_line = [this, number](const std::string& line) {
    if (const auto found = describing_.find(number); found != describing_.end())
      found->second->whole |= read_line(line, found->second->report);
  };
  described->process = std::make_unique<cluster::Process>(
      io_, process, [this, number, handler](const cluster::ExitCause& cause) {
        auto node = describing_.extract(number);
        // The process object goes after its own handler has returned.
        boost::asio::post(io_, [gone = node.mapped()] {});
        auto report = std::move(node.mapped()->report);
        auto& failure = report.failure;
        if (failure.empty() && !cause.by_signal && cause.number == 0 && !node.mapped()->whole)
          failure = "[plugin] " + report.file +
                    ": it ended its process, with exit code 0, while it was opened";
        if (failure.empty() && (cause.by_signal || cause.number != 0))
          failure = cause.log.empty()
                        ? "[plugin] " + report.file + ": its check ended with " + cause.text()
                        : cause.log.back();
        handler(std::move(report));
      });
  describing_[number] = described;
  described->deadline.expires_after(options_.describe_deadline);
  described->deadline.async_wait(
      [weak = std::weak_ptr(described),
       deadline = options_.describe_deadline](const boost::system::error_code& error) {
        const auto late = weak.lock();
        if (error || !late) return;
        late->end(fmt::format("was not opened within {} ms", deadline.count()));
      });
}

void HostProcesses::end_checks() {
  checks_ended_ = true;
  for (const auto& [number, described] : describing_)
    described->end("its check was ended, this host is leaving");
}

std::string find_host_program(const std::string& actor_program) {
  const auto beside = std::filesystem::path(actor_program).parent_path() / "troupe-host";
  if (faccessat(AT_FDCWD, beside.c_str(), X_OK, AT_EACCESS) != 0)
    throw std::runtime_error("[plugin] troupe-host is not beside " + actor_program);
  return beside.string();
}

std::vector<std::int32_t> local_gpus(int first_gpu) {
  std::vector<std::int32_t> gpus;
  for (int gpu = first_gpu; gpu < 64; ++gpu) {
    if (access((fmt::format("/dev/nvidia{}", gpu)).c_str(), F_OK) != 0) break;
    gpus.push_back(gpu);
  }
  return gpus;
}

}  // namespace troupe::user
