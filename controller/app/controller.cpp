#include "controller/app/controller.h"

#include <unistd.h>
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/available_memory.h"
#include "base/format.h"
#include "base/log_line.h"
#include "base/xxh64.h"
#include "controller/deployments/device_kinds.h"
#include "controller/hosts/capacity.h"
#include "controller/jobs/batching.h"
#include "controller/jobs/replan.h"
#include "controller/jobs/reuse_stages.h"
#include "controller/service/metrics.h"
#include "models/spec/model_plugin.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {

namespace {

/// Returns the contents of the model plugins that are open here, by file name.
std::map<std::string, std::string> model_plugins() {
  std::map<std::string, std::string> contents;
  for (const auto& file : spec::user_models().files())
    contents[file.filename().string()] = contents_text({file, spec::network_half_of(file)});
  return contents;
}

constexpr std::size_t kKeptJobs = 256;
constexpr std::chrono::milliseconds kStopDeadline{1500};
constexpr std::chrono::milliseconds kKilledDeadline{5000};  // after SIGKILL

journal::Calendar calendar_now() {
  const auto seconds = [](auto when) {
    return std::chrono::duration<double>(when.time_since_epoch()).count();
  };
  const auto now = seconds(control::Clock::now());
  return {seconds(std::chrono::system_clock::now()) - now, now};
}

ClusterOptions checked(ClusterOptions options) {
  // None: all come with hosts that join.
  if (options.actors < 0)
    throw std::runtime_error(
        fmt::format("[cluster] actors is {}: it cannot be negative", options.actors));
  if (!parse_choice<DeviceKind>(options.device)) {
    throw std::runtime_error("[cluster] device is \"" + options.device + "\": cpu or cuda");
  }
  if (options.actors_per_gpu < 1)
    throw std::runtime_error(fmt::format("[cluster] actors_per_gpu is {}: at least 1 is needed",
                                         options.actors_per_gpu));
  if (options.actor_program.empty()) options.actor_program = find_actor_program();
  return options;
}

std::unique_ptr<journal::SqliteStore> open_store(const ClusterOptions& options) {
  if (options.journal.empty()) return nullptr;
  return std::make_unique<journal::SqliteStore>(
      options.journal, journal::SqliteStore::Options{.salvage = options.journal_salvage});
}

}  // namespace

Controller::Controller(boost::asio::io_context& io, const ClusterOptions& options)
    : io_(io),
      options_(checked(options)),
      token_(control::random_secret()),
      store_(open_store(options_)),
      previous_run_(store_ ? store_->previous_run() : journal::PreviousRun{}),
      refusals_(options_.logs ? log_line : control::Refusals::Tell()),
      endpoints_(io, options_, blobs_, refusals_, store_ ? previous_run_.id : ""),
      environment_(
          io, endpoints_.server(), endpoints_.blob_server(), blobs_,
          {token_, endpoints_.issue_keys("the cluster's actors", control::ClientRole::operate)}),
      started_(environment_.now()),
      members_(token_, model_plugins()),
      table_(options_.max_queued_jobs, kKeptJobs),
      failures_(
          recorder_, [this] { return environment_.now(); },
          options_.logs ? log_line : std::function<void(const std::string&)>()),
      journal_(store_ ? std::make_unique<journal::Journal>(
                            [this](journal::Change change, journal::Journal::Done done) {
                              writer_->write(std::move(change), std::move(done));
                            },
                            [this](control::BlobId id) { return blobs_.bytes(id); }, calendar_now())
                      : nullptr),
      figures_(endpoints_.server(), control::host_name(), local_capacity().cores),
      deployments_(environment_, members_, options_.prompt_cache_bytes),
      planner_(members_, deployments_, table_, figures_,
               parse_choice<DeviceKind>(options_.device).value()),
      runner_({.environment = environment_,
               .members = members_,
               .deployments = deployments_,
               .table = table_,
               .options = {.max_jobs_per_deployment =
                               static_cast<std::size_t>(options_.max_jobs_together),
                           .max_recoveries = options_.max_recoveries,
                           .max_batch = options_.max_batch,
                           // No host finds a private folder.
                           .rejoin_deadline =
                               options_.listen.empty()
                                   ? 0.0
                                   : static_cast<double>(options_.rejoin_deadline.count())},
               .recorder = &recorder_,
               .plan_again = [this](const auto& job,
                                    int actors) { return planner_.plan_again(job, actors); },
               .plan_batch = ClusterPlanner::plan_batch}),
      supervisor_(
          {.environment = environment_,
           .members = members_,
           .deployments = deployments_,
           .runner = runner_,
           .options = {.start_deadline = static_cast<double>(options_.start_deadline.count()),
                       .task_deadline = static_cast<double>(options_.task_deadline.count()),
                       .max_respawns = options_.max_respawns}}),
      drainer_({environment_, members_, deployments_, runner_}),
      startup_(members_, supervisor_),
      processes_(io, process_options(), on_process_exit()),
      hosts_({.server = endpoints_.server(),
              .environment = environment_,
              .members = members_,
              .own_host = control::host_name(),
              .spawn = [this](ActorId id) { supervisor_.spawn(id); },
              .on_started = [this](const auto& owner, auto incarnation,
                                   auto pid) { process_started(owner, incarnation, pid); },
              .on_exit = on_process_exit(),
              .note = note_failure()},
             processes_),
      users_(io, environment_, user_actor_options()),
      introspection_(introspection_tools()),
      clients_({.version = TROUPE_VERSION,
                .host = control::host_name(),
                .pid = static_cast<std::uint32_t>(getpid()),
                .endpoint = endpoints_.endpoint(),
                .model = options_.model,
                .device = parse_choice<DeviceKind>(options_.device).value(),
                .started = started_},
               service_tools()),
      metrics_(options_.metrics_port < 0
                   ? nullptr
                   : std::make_unique<service::MetricsServer>(
                         io, static_cast<std::uint16_t>(options_.metrics_port),
                         [this] { return metrics(); })),
      router_({.rooms = {.server = &endpoints_.server(),
                         .members = &members_,
                         .runner = &runner_,
                         .drainer = &drainer_,
                         .hosts = &hosts_,
                         .users = &users_,
                         .introspection = &introspection_,
                         .clients = &clients_},
               .blob_server = endpoints_.blob_server(),
               .refusals = refusals_,
               .supervisor = supervisor_,
               .startup = startup_,
               .figures = figures_,
               .on_host_lost = [this] { check_stopped(); }}),
      stop_timer_(io) {
  connect();
  start();
}

// What each is made with.

LocalProcessHost::Options Controller::process_options() {
  return {.host = options_,
          .host_program = options_.plugins.empty() ? "" : find_host_program(options_.actor_program),
          .control_endpoint = endpoints_.endpoint(),
          .blob_endpoint = endpoints_.blob_server().endpoint(),
          .listen_host = endpoints_.tensor_host()};
}

ProcessHost::OnExit Controller::on_process_exit() {
  return [this](const auto& owner, auto incarnation, const ExitCause& cause) {
    process_exited(owner, incarnation, cause);
  };
}

std::function<void(const std::string&)> Controller::note_failure() {
  return [this](const std::string& text) { failures_.note(text); };
}

user::UserActorService::Options Controller::user_actor_options() {
  user::UserActorService::Options room;
  room.plugins = options_.plugins;
  room.host = control::host_name();
  room.cores = std::thread::hardware_concurrency();
  room.gpus = local_gpus(options_.gpus());
  if (!options_.plugins.empty())
    room.check.host_program = find_host_program(options_.actor_program);
  // A secret of their own: that of the actors is also the tensor plane's, and plugins are others'
  // code. So their keys are not for everything, either.
  room.access = {control::random_secret(),
                 endpoints_.issue_keys("user actors", control::ClientRole::all_jobs),
                 options_.insecure};
  room.keyed = endpoints_.is_keyed();
  room.process_host = [this](const std::string& host) { return hosts_.of_host(host); };
  room.note = note_failure();
  room.on_checked = [this] { check_stopped(); };
  return room;
}

service::Introspection::Tools Controller::introspection_tools() {
  return {.server = endpoints_.server(),
          .environment = environment_,
          .members = members_,
          .table = table_,
          .runner = runner_,
          .recorder = recorder_,
          .signal =
              [this](ActorId id, int signal) {
                return hosts_.of_actor(id).signal({PeerRole::actor, id}, signal);
              },
          .lines =
              [this](ActorId id, std::uint64_t after, std::size_t lines) {
                const auto& log = hosts_.of_actor(id).lines(id);
                return wire::LogLines{log.last(), log.lines(after, lines)};
              },
          .host = control::host_name(),
          .pid = static_cast<std::uint32_t>(getpid()),
          .log_folder = options_.log_folder,
          .machine = [this] { return planner_.least_machine(); },
          .note = note_failure(),
          .metrics = [this] { return metrics(); }};
}

service::Tools Controller::service_tools() {
  return {.io = io_,
          .server = endpoints_.server(),
          .blob_server = endpoints_.blob_server(),
          .blobs = blobs_,
          .members = members_,
          .deployments = deployments_,
          .table = table_,
          .runner = runner_,
          .failures = failures_,
          .now = [this] { return environment_.now(); },
          .stop =
              [this] {
                if (stop_asked_) boost::asio::post(io_, stop_asked_);
              },
          .allowed_models =
              options_.allow_models ? AllowedFolders(*options_.allow_models) : AllowedFolders(),
          .journal = journal_.get(),
          .recorder = &recorder_,
          .max_restarts = options_.max_recoveries,
          .max_input_bytes = service::Tools::InputBytes::within(
              available_memory().value_or(std::numeric_limits<std::uint64_t>::max())),
          .machine = [this](WeightChoice weights) { return planner_.machine(weights); }};
}

// Who hears of what.

void Controller::connect() {
  environment_.use([this](ActorId id) -> ProcessHost& { return hosts_.of_actor(id); });
  deployments_.listen(runner_);
  deployments_.listen(supervisor_);
  runner_.listen(clients_);
  supervisor_.listen({.note = note_failure(),
                      .on_given_up = [this](const std::string& why) { startup_.cannot_start(why); },
                      .starting_up = [this] { return startup_.under_way(); },
                      .record_hang =
                          [this](ActorId id, const std::string& why) {
                            return introspection_.record_hang(id, why);
                          }});
  clients_.use(introspection_);
}

// Its life.

void Controller::start() {
  users_.check_plugins(
      [this](const std::optional<std::string>& why) { startup_.plugins_checked(why); });
  for (int i = 0; i < options_.actors; ++i) {
    const auto device = device_of(options_.device, i, options_.actors_per_gpu);
    const ActorId id = members_.add(control::host_name(), device).id;
    if (options_.memory_limit > 0) members_.limit_memory(id, options_.memory_limit);
    startup_.add(id);
  }
  startup_.fill();
  if (const auto& why = startup_.failure()) throw std::runtime_error(*why);
  supervisor_.watch();
  take_up_jobs();
}

void Controller::take_up_jobs() {
  if (!store_) return;
  const auto note = [this](const std::string& what) {
    if (!options_.logs) log_line(what);
    failures_.note(what);
  };
  const auto records = store_->load();
  const auto revival = journal::revive(
      records, store_->previous_run(), calendar_now(),
      [this](control::BlobBytes bytes) { return blobs_.add(std::move(bytes)); }, table_);
  for (const auto& what : store_->notes())
    note(what);
  if (revival.clock_back > 1)
    note(
        fmt::format("[journal] this machine's clock is {} s behind the journal's newest entry; "
                    "what lies later than now counts as now",
                    std::llround(revival.clock_back)));
  writer_ = std::make_unique<journal::Writer>(io_, std::move(store_), note);
  clients_.take_up(revival, journal::cause_of(previous_run_));
  runner_.expire();
}

void Controller::process_started(const ProcessOwner& owner, std::uint64_t incarnation,
                                 std::uint32_t pid) {
  if (owner.role == PeerRole::user_actor)
    return users_.actors().started(owner.id, incarnation, pid);
  members_.runs_as(static_cast<ActorId>(owner.id), incarnation, pid);
}

void Controller::process_exited(const ProcessOwner& owner, std::uint64_t incarnation,
                                const ExitCause& cause) {
  if (owner.role == PeerRole::user_actor) {
    users_.actors().exited(owner.id, incarnation, cause);
    return check_stopped();
  }
  if (stopping_) return check_stopped();
  supervisor_.exited(static_cast<ActorId>(owner.id), incarnation, cause);
  startup_.fill();
}

std::string Controller::metrics() {
  return service::metrics_text({.members = members_,
                                .table = table_,
                                .runner = runner_,
                                .recorder = recorder_,
                                .control = endpoints_.server().counters(),
                                .blobs = endpoints_.blob_server().counters(),
                                .turned_away = refusals_.count(),
                                .version = TROUPE_VERSION,
                                .uptime_seconds = environment_.now() - started_});
}

// Its end.

void Controller::stop(Stop what, const wire::Failure& why, std::function<void()> stopped) {
  if (stopping_) return;
  const std::string stopping = "the cluster is stopping";
  clients_.close(stopping);
  runner_.fail_all(why);
  stopping_ = true;
  router_.close(stopping);
  startup_.stop(why.what);
  stopped_ = std::move(stopped);
  supervisor_.stop();
  drainer_.stop();
  for (const auto& [id, actor] : members_.all()) {
    if (actor.state == ActorState::ready)
      environment_.send(actor.peer, wire::Shutdown{});
    else
      environment_.kill(id, why.what);
  }
  if (what == Stop::controller && journal_)
    goodbye_ = "it was stopped, and goes on with its jobs when it is started again";
  else
    hosts_.dismiss();
  users_.stop(stopping);
  check_stopped();
  if (!stopped_) return;
  stop_timer_.expires_after(kStopDeadline);
  stop_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const auto& [id, actor] : members_.all())
      environment_.kill(id, "it was to leave and did not");
    stop_timer_.expires_after(kKilledDeadline);
    stop_timer_.async_wait([this](const boost::system::error_code& again) {
      // A driver may keep a process beyond SIGKILL, and a host may be frozen.
      if (!again && stopped_) boost::asio::post(io_, std::exchange(stopped_, nullptr));
    });
  });
}

void Controller::check_stopped() {
  if (!stopping_ || !stopped_ || hosts_.running() > 0 || users_.running() > 0) return;
  if (!goodbye_.empty()) hosts_.say_goodbye(std::exchange(goodbye_, ""));
  // They leave when they have read that it ends; what is unread at a connection's end is lost.
  if (hosts_.connected() > 0) return;
  boost::asio::post(io_, std::exchange(stopped_, nullptr));
}

Controller::~Controller() {
  writer_.reset();  // who is told that it has stopped finds the journal free
  for (const auto peer : endpoints_.server().peer_ids())
    endpoints_.server().drop(peer, "the cluster has stopped", wire::LinkEnd::stopped);
}

namespace {

const spec::ModelSpec& model_of(const jobs::JobEntry& job) {
  if (!job.model) throw std::invalid_argument("[cluster] the job's model is not known any more");
  return *job.model;
}

}  // namespace

plan::Machine ClusterPlanner::machine(WeightChoice weight_dtype) const {
  return figures_.machine(members_, commonest_kind(members_, weight_dtype, device_));
}

plan::Machine ClusterPlanner::least_machine() const {
  auto known = machine(WeightChoice::as_computed);
  const auto least = members_.memory_steps().front().first;
  if (least > 0) known.device.memory = least;
  return known;
}

plan::Plan ClusterPlanner::plan_again(const jobs::JobEntry& job, int actors) const {
  const auto& model = model_of(job);
  const auto known = machine(job.spec.request.weight_dtype);
  const auto fits = [this](const plan::Plan& plan) { return !deployments_.shortage(plan); };
  auto plan = jobs::plan_again(job, model, actors, known, {members_.memory_steps(), fits});
  jobs::reuse_stages(plan, job.spec.model, job.fingerprint, model, known,
                     {members_, deployments_, table_});
  return plan;
}

plan::Plan ClusterPlanner::plan_batch(const jobs::JobEntry& first,
                                      const wire::ImageRequest& request) {
  return plan::make_plan(model_of(first), request, jobs::parallelism_of(first));
}

}  // namespace troupe::cluster
