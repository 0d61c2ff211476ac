#include "client/cli/verbs/start.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "base/available_memory.h"
#include "base/files.h"
#include "base/format.h"
#include "base/log_line.h"
#include "base/text.h"
#include "base/xxh64.h"
#include "client/cli/actor_options.h"
#include "client/cli/files.h"
#include "client/cli/follow.h"
#include "client/cli/json.h"
#include "client/cli/named_model.h"
#include "client/cli/progress.h"
#include "client/cli/signals.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "controller/app/cluster.h"
#include "controller/hosts/capacity.h"
#include "models/spec/model_spec.h"
#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"

namespace troupe::cli {
namespace {

constexpr int kSeconds = 120;
constexpr int kSecondsAnActor = 5;
constexpr std::chrono::milliseconds kTickEvery{200};

}  // namespace

void check_crowding(int actors, int threads_per_actor, const std::string& device) {
  const auto capacity = cluster::local_capacity();
  if (const auto why = cluster::too_crowded(actors, capacity)) throw std::runtime_error(*why);
  if (const auto what = cluster::crowding(actors, threads_per_actor, device, capacity))
    std::cerr << coloured("troupe: warning:", Colour::yellow, STDERR_FILENO) << " " << *what
              << std::endl;
}

std::chrono::seconds ready_deadline(int actors) {
  return std::chrono::seconds(kSeconds +
                              kSecondsAnActor * actors / cluster::local_capacity().cores);
}

StartingView::StartingView(int actors, bool quiet) {
  if (actors == 0 || progress_style(quiet) != ProgressStyle::bar) return;
  thread_ = std::thread([this, actors] {
    ProgressView view(std::cerr, ProgressStyle::bar);
    std::unique_lock lock(mutex_);
    view.show("starting " + counted(actors, "actor"));
    while (!over_.wait_for(lock, kTickEvery, [this] { return ends_; }))
      view.tick();
    view.finish();
  });
}

StartingView::~StartingView() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  over_.notify_all();
  thread_.join();
}

/// Report that a process in the background sends once to the process that started it.
struct DaemonReport {
  bool ok = false;
  std::string text;   // for standard output when ok, else the cause
  int exit_code = 1;  // when not ok: 128 + the signal that ended the wait, else 1
};
using ReportOnce = std::function<void(const DaemonReport&)>;

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

void write_report(int pipe, const DaemonReport& report) {
  std::string bytes = (report.ok ? "+" : "-") + report.text;
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(pipe, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    done += static_cast<std::size_t>(written);
  }
}

/// Reads everything until the pipe's other end closes. False at the deadline.
bool read_until_closed(int pipe, int deadline_seconds, std::string& bytes) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(deadline_seconds);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd ready{pipe, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(left.count())) < 0 && errno != EINTR) fail("poll");
    if ((ready.revents & (POLLIN | POLLHUP)) == 0) continue;
    char buffer[4096];
    const ssize_t got = read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno != EINTR) fail("read");
    if (got == 0) return true;
    if (got > 0) bytes.append(buffer, static_cast<std::size_t>(got));
  }
}

[[noreturn]] void be_child(int pipe, int log, const std::function<int(const ReportOnce&)>& work) {
  setsid();
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close(null);
  close(log);
  int code = 1;
  try {
    code = work([&pipe](const DaemonReport& report) {
      if (pipe < 0) return;
      write_report(pipe, report);
      close(pipe);
      pipe = -1;
    });
  } catch (const std::exception& error) {
    if (pipe >= 0) write_report(pipe, {false, text_of(error)});
    log_line(text_of(error));
  }
  _exit(code);
}

}  // namespace

/// Forks, before any thread exists. The child becomes a session of its own with its output in
/// `log`, does `work(report)` and exits with what it returns; `work` calls `report` once it stands
/// or has failed. The parent gets that report, or the cause when there is none within
/// `deadline_seconds` or a signal ends the wait (then the child is told to end). Throws
/// std::runtime_error when the log cannot be opened or no process made.
DaemonReport run_in_background(const std::string& log, int deadline_seconds,
                               const std::function<int(const ReportOnce&)>& work) {
  const int log_file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_file < 0) fail(log + ": cannot be opened");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], log_file, work);
  }
  close(ends[1]);
  close(log_file);
  std::string bytes;
  bool told;
  int interrupted;
  {
    // The child hears nothing of the terminal any more.
    SignalWatch signals;
    ActOnSignal stop(signals, [child] { kill(child, SIGTERM); });
    told = read_until_closed(ends[0], deadline_seconds, bytes);
    interrupted = signals.caught() ? signals.exit_code() : 0;
  }
  close(ends[0]);
  if (interrupted && bytes.empty())
    return {false, "interrupted while actors were starting", interrupted};
  if (!told) {
    kill(child, SIGTERM);
    return {false, fmt::format("the controller (pid {}) did not start within {} s; see {}", child,
                               deadline_seconds, log)};
  }
  if (bytes.empty()) return {false, "the controller ended before it had started; see " + log};
  if (bytes[0] == '-') waitpid(child, nullptr, 0);
  return {bytes[0] == '+', bytes.substr(1)};
}
namespace {

constexpr std::chrono::seconds kLogWait{5};

class StartVerb : public Verb {
 public:
  explicit StartVerb(Options& options) : Verb(options) {
    add_actors();
    add_jobs();
    add_access();
    set_footer(
        "In the foreground Ctrl-C ends the cluster. The other commands find it by themselves when "
        "--listen is left out; otherwise give them --connect ENDPOINT or set TROUPE_ADDRESS.",
        {"troupe start --actors 4 --model DIR",
         "troupe start --actors 2 --listen tcp://127.0.0.1:7400 --detach"},
        "commands.md#start");
  }

  void check() override {
    if (options_.journal_salvage && options_.journal.empty())
      throw UsageError("--journal-salvage goes with --journal only");
    if (app_->count("--log") > 0 && !detach_) throw UsageError("--log goes with --detach only");
    check_cuda_graphs(options_.cuda_graphs, options_.device);
    check_actors_per_gpu(options_.actors_per_gpu, options_.device);
  }

  int run() override {
    settle_options();
    options_.logs = detach_;
    check_crowding(options_.actors, options_.threads_per_actor, options_.device);
    if (!detach_) {
      return serve([this](const DaemonReport& report) {
        if (report.ok) std::cout << report.text << std::flush;
      });
    }
    FileHandle lock;
    if (log_.empty()) {
      log_ = control::make_runtime_folder() + "/" + log_name();
    } else {
      check_writable("--log", log_);
      lock = lock_log();
    }
    const DaemonReport report =
        run_in_background(log_, static_cast<int>(ready_deadline(options_.actors).count()) + 10,
                          [this](const ReportOnce& tell) { return serve(tell); });
    if (!report.ok) {
      throw CommandError(
          Error{report.exit_code > 128 ? ErrorCode::interrupted : ErrorCode::failed, report.text},
          report.exit_code);
    }
    goes_on_ = "the cluster at " + options_.listen + " has started: `troupe stop` ends it";
    std::cout << report.text << std::flush;
    return kOk;
  }

 private:
  /// Adds the options that say where the cluster is and what its actors are.
  void add_actors() {
    app_->add_option("--listen", options_.listen,
                     "Where to listen: ipc://PATH or tcp://HOST:PORT (default: " +
                         client::default_endpoint() + ")")
        ->type_name("ENDPOINT");
    add_model_plugin_option(*app_);
    add_actors_option(*app_, options_.actors, 0,
                      "Actors to start; 0 = none here, all come with hosts that join");
    add_model_option(*app_, options_.model, "Model of the jobs that name none");
    add_parts_options(*app_, parts_);
    add_device_option(*app_, options_.device);
    add_threads_option(*app_, options_.threads_per_actor);
    add_pin_option(*app_, options_.pin);
    add_cuda_graphs_option(*app_, options_.cuda_graphs);
    add_prompt_cache_option(*app_, options_.prompt_cache_bytes);
    add_actors_per_gpu_option(*app_, options_.actors_per_gpu);
    app_->add_option("--plugin", options_.plugins,
                     "Shared library with actors of your own (repeatable; docs/actors.md)")
        ->check(not_empty())
        ->type_name("FILE");
    add_keep_logs_option(*app_, options_.log_folder);
  }

  /// Adds the options of jobs: what outlives what, and how many go together.
  void add_jobs() {
    app_->add_option("--journal", options_.journal,
                     "Keep the jobs in this folder, so that a controller started with it again "
                     "knows them and goes on with them (docs/operate.md)")
        ->envname("TROUPE_JOURNAL")
        ->check(not_empty())
        ->type_name("DIR");
    app_->add_flag("--journal-salvage", options_.journal_salvage,
                   "With --journal: where its journal.db is damaged, go on with what can be read; "
                   "the damaged files stay beside it, and what is lost is named");
    app_->add_option("--metrics-port", options_.metrics_port,
                     "Answer GET /metrics (Prometheus) on this port of 127.0.0.1; 0 = any free one")
        ->check(whole(0, 65535))
        ->type_name("N");
    app_->add_option("--recoveries", options_.max_recoveries,
                     "Losses of actors that a job outlives without getting a step further")
        ->check(whole(0, 1000))
        ->type_name("N")
        ->capture_default_str();
    app_->add_option("--respawns", options_.max_respawns,
                     "New processes for a place whose actor ended; -1 = as many as it takes")
        ->check(whole(-1, 1 << 30))
        ->type_name("N")
        ->capture_default_str();
    app_->add_option_function<std::int64_t>(
            "--rejoin-deadline",
            [this](std::int64_t seconds) {
              options_.rejoin_deadline = std::chrono::seconds(seconds);
            },
            fmt::format(
                "Seconds, 0 to 86400, that jobs in the queue wait for hosts to join where too few "
                "actors are left for them (default: {})",
                options_.rejoin_deadline.count()))
        ->check(whole(0, 86'400))
        ->type_name("SECONDS");
    add_task_deadline_option(*app_, options_.task_deadline);
    app_->add_option("--tensor-host", options_.tensor_host,
                     "Address on which actors take tensors of other hosts' actors, a number "
                     "(default: that of --listen, else 127.0.0.1)")
        ->check(numeric_address())
        ->type_name("ADDRESS");
    app_->add_option("--jobs-together", options_.max_jobs_together,
                     "Jobs that share the actors of one deployment at a time")
        ->check(whole(1, 64))
        ->type_name("N")
        ->capture_default_str();
    app_->add_option("--max-batch", options_.max_batch,
                     "Pictures, 1 to 4096, that jobs with --may-batch compute as one batch at "
                     "most; 1 = none do")
        ->check(whole(1, 4096))
        ->type_name("PICTURES")
        ->capture_default_str();
    add_memory_limit_option(*app_, options_.memory_limit);
  }

  /// Adds the options that say who may come in, and where the log goes.
  void add_access() {
    add_keys_option(
        *app_, options_.keys,
        "With --listen tcp://: let only clients in that have keys (`troupe keys`; default: on a "
        "loopback address those of this user alone)");
    app_->add_flag("--insecure", options_.insecure,
                   "With --listen tcp://: ask nobody for keys; whoever reaches the port is a "
                   "client");
    app_->add_option("--allow-models", allow_models_,
                     "Folder whose models clients may name (repeatable). Default: with --listen "
                     "tcp:// that of --model alone, else any")
        ->check(not_empty())
        ->type_name("DIR|NAME");
    app_->add_flag("--detach", detach_, "Go to the background once all actors are ready");
    app_->add_option("--log", log_,
                     "With --detach: the controller's log (default: " + control::runtime_folder() +
                         "/controller.log, with another --listen controller-ADDRESS.log there)")
        ->check(not_empty())
        ->type_name("FILE");
  }

  /// A name of the cluster's own. Where its address does not fit a file's name, a digest tells it
  /// from others that come out alike.
  std::string log_name() const {
    if (options_.listen == client::default_endpoint()) return "controller.log";
    constexpr std::size_t kLongest = 200;
    const auto endpoint = control::parse_endpoint(options_.listen);
    std::string name =
        endpoint.ipc ? endpoint.path.string() : fmt::format("{}-{}", endpoint.host, endpoint.port);
    const std::string whole = name;
    for (char& letter : name)
      letter = std::isalnum(static_cast<unsigned char>(letter)) || letter == '.' ? letter : '-';
    if (name.size() > kLongest) name.erase(0, name.size() - kLongest);
    if (name != whole) {
      Xxh64 digest;
      digest.update(whole.data(), whole.size());
      name += fmt::format("-{:08x}", digest.digest() >> 32);
    }
    // Any number of clusters may be at ports that they pick themselves.
    if (!endpoint.ipc && endpoint.port == 0) name += fmt::format("-{}", getpid());
    return "controller-" + name + ".log";
  }

  /// Held until this controller's process has ended: two logs in one file cannot be told apart. One
  /// that was just stopped is waited for.
  FileHandle lock_log() const {
    FileHandle file(open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    bool locked = false;
    const auto deadline = std::chrono::steady_clock::now() + kLogWait;
    while (file && !(locked = flock(file.get(), LOCK_EX | LOCK_NB) == 0) && errno == EWOULDBLOCK &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (!locked)
      throw std::runtime_error("--log " + log_ + ": " +
                               (errno == EWOULDBLOCK
                                    ? "another controller writes its log there: name another file"
                                    : std::strerror(errno)));
    return file;
  }

  void settle_options() {
    if (options_.listen.empty()) {
      control::make_runtime_folder();
      options_.listen = client::default_endpoint();
    }
    options_.listen = checked_endpoint(options_.listen, "--listen");
    check_metrics_port();
    if (!options_.model.empty()) {
      options_.model = found_model(options_.model, parts_);
    } else {
      refuse_beside(
          *app_, "no --model",
          {"--fetch", "--base", "--vae", "--text-encoder", "--text-encoder-2", "--text-encoder-3"},
          ": they are parts of it");
    }
    for (auto& plugin : options_.plugins) {
      plugin = absolute_path(plugin);
      if (!std::filesystem::exists(plugin))
        throw std::runtime_error("--plugin " + plugin + ": no such file");
    }
    options_.journal = absolute_path(options_.journal);
    log_ = absolute_path(log_);
    if (options_.keys == control::kNoKeys) {
      // Clients say so, and trust whoever listens.
      if (options_.listen.starts_with("tcp://") && !options_.insecure)
        throw UsageError(
            "--keys none is for clients: a cluster that asks nobody for keys is started with "
            "--insecure");
      options_.keys.clear();
    }
    options_.keys = absolute_path(options_.keys);
    settle_security();
    make_log_folder(options_.log_folder);
    if (!options_.model.empty()) read_model_folder(options_.model);
  }

  /// A tcp controller listens on its port and the next.
  void check_metrics_port() const {
    const auto own = control::parse_endpoint(options_.listen);
    if (own.ipc || own.port == 0) return;
    if (options_.metrics_port != own.port && options_.metrics_port != own.port + 1) return;
    throw UsageError(fmt::format(
        "--metrics-port {} is the cluster's own: with --listen {} it takes {} and, for blobs, {}",
        options_.metrics_port, options_.listen, own.port, own.port + 1));
  }

  void settle_security() {
    const bool tcp = options_.listen.starts_with("tcp://");
    if (!tcp) {
      if (app_->count("--keys") > 0)
        throw UsageError("--keys goes with --listen tcp://HOST:PORT; an ipc folder is private");
      options_.keys.clear();
    }
    if (!tcp && allow_models_.empty()) return;
    options_.allow_models = allowed_folders(allow_models_);
    if (!options_.model.empty()) options_.allow_models->push_back(options_.model);
  }

  std::string ready_text(const cluster::Cluster& cluster) const {
    if (json()) {
      nlohmann::json ready = {{"endpoint", cluster.endpoint()},
                              {"pid", getpid()},
                              {"actors", options_.actors},
                              {"model", options_.model}};
      if (detach_) ready["log"] = log_;
      if (cluster.metrics_port() != 0) ready["metrics_port"] = cluster.metrics_port();
      return ready.dump(2) + "\n";
    }
    std::string text = fmt::format("endpoint  {}\npid       {}\nactors    {} ready\n",
                                   cluster.endpoint(), getpid(), options_.actors);
    if (detach_) text += "log       " + log_ + "\n";
    if (cluster.metrics_port() != 0)
      text += fmt::format("metrics   http://127.0.0.1:{}/metrics\n", cluster.metrics_port());
    if (detach_) {
      const std::string where = cluster.endpoint() == client::default_endpoint()
                                    ? ""
                                    : ", each with --connect " + cluster.endpoint();
      text += fmt::format(
          "next      `troupe submit {}--prompt TEXT` paints, `troupe status` shows the actors, "
          "`troupe stop` ends it{}\n",
          options_.model.empty() ? "--model DIR " : "", where);
    }
    return text;
  }

  /// Returns what keeps the cluster from beginning, under the option that asks for it.
  std::string refusal(std::string what) const {
    constexpr std::string_view kCluster = "[cluster] ";
    if (what.starts_with(kCluster)) what.erase(0, kCluster.size());
    RoomOptions options{{"journal", "--journal"},
                        {"keys", "--keys"},
                        {"metrics", "--metrics-port:"},
                        {"model", "--allow-models"},
                        {"plugin", "--plugin"}};
    // Others of that room's words are not about an endpoint.
    const std::string scheme = options_.listen.substr(0, 6);
    if (app_->count("--listen") > 0 && what.starts_with("[control] " + scheme))
      options.emplace_back("control", "--listen");
    return by_option(what, options);
  }

  cluster::Cluster begin() const {
    try {
      return cluster::Cluster(options_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const control::EndpointInUse& error) {
      throw std::runtime_error(refusal(error.what()) +
                               ": if that is a cluster, `troupe stop` ends it; another --listen "
                               "goes beside it");
    } catch (const std::exception& error) {
      throw std::runtime_error(refusal(error.what()));
    }
  }

  void log(const std::string& what) const {
    if (options_.logs) log_line(what);
  }

  int serve(const ReportOnce& tell) {
    SignalWatch signals;
    cluster::Cluster cluster = begin();
    ActOnSignal stop(signals, [&] { cluster.stop(); });
    const std::string name = "the cluster at " + cluster.endpoint();
    log(name + " begins with " + counted(options_.actors, "actor"));
    try {
      const StartingView view(options_.actors, detach_);
      cluster.wait_ready(ready_deadline(options_.actors));
    } catch (const std::exception& error) {
      if (!signals.caught()) throw std::runtime_error(refusal(error.what()));
    }
    if (!signals.caught()) {
      tell({true, ready_text(cluster)});
      log(name + " is ready");
      cluster.run_until_stopped();
    }
    log(name + (signals.caught() ? fmt::format(" ends by signal {}", signals.caught()) : " ends"));
    if (signals.caught() == SIGINT && isatty(STDERR_FILENO)) std::cerr << std::endl;
    return kOk;
  }

  cluster::ClusterOptions options_;
  std::vector<std::string> allow_models_;
  bool detach_ = false;
  ModelParts parts_;
  std::string log_;
};

}  // namespace

std::unique_ptr<Verb> make_start(Options& options) {
  return std::make_unique<StartVerb>(options);
}

}  // namespace troupe::cli
