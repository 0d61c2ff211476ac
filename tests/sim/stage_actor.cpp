#include "tests/sim/stage_actor.h"

#include <algorithm>

#include "tests/controller/sample_model.h"
#include "tests/sim/world.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"

namespace troupe::sim {
namespace {

constexpr double kLongestPause = 0.25;

std::string label(const wire::Command& command, int step, int patch, int part) {
  return "job " + std::to_string(command.job) + " step " + std::to_string(step) + " patch " +
         std::to_string(patch) + " part " + std::to_string(part);
}

std::string replica_of(const wire::BeginJob& begin) {
  return "deployment " + std::to_string(begin.deployment) + " pictures " +
         std::to_string(begin.first_image);
}

/// The edge behind `stage`, between actors of equal places on the other axes.
std::string edge(const wire::BeginJob& begin, int stage) {
  return replica_of(begin) + " stage " + std::to_string(stage) + " at " +
         std::to_string(begin.cfg.rank) + "." + std::to_string(begin.ring.rank) + "." +
         std::to_string(begin.ulysses.rank) + "." + std::to_string(begin.tp.rank);
}

bool is_whole(const wire::ImageRequest& request, int step) {
  const auto& refills = request.refill_steps;
  return request.method == "exact" || step < request.warmup_steps ||
         std::find(refills.begin(), refills.end(), step) != refills.end();
}

bool ends_step(const wire::BeginJob& begin, const wire::Command& command) {
  return command.patch < 0 ? command.part + 1 == static_cast<int>(begin.batch_parts.size())
                           : command.patch + 1 == static_cast<int>(begin.micro_steps.size());
}

std::size_t members_of(const wire::BeginJob& begin, wire::TaskKind kind) {
  const auto stage = static_cast<std::size_t>(begin.cfg.degree * begin.ring.degree *
                                              begin.ulysses.degree * begin.tp.degree);
  if (kind == wire::TaskKind::micro_step) return stage;
  if (kind == wire::TaskKind::encode_text) return stage * begin.stage.degree;
  if (begin.row_rank < 0) return 1;
  std::set<int> members(begin.row_holders.begin(), begin.row_holders.end());
  for (int decoder = 0; decoder < begin.row_decoders; ++decoder)
    members.insert(decoder);
  return members.size();
}

/// Pieces must cover every row of every picture, and say where the job goes on.
void check_boundary(const World& world, const wire::BeginJob& begin) {
  std::int64_t covered = 0;
  for (const auto& piece : begin.boundary) {
    const auto text = world.held_blob(piece.blob.id);
    const std::string wanted =
        "job " + std::to_string(begin.job) + " next " + std::to_string(begin.first_step);
    if (text != wanted) {
      throw Violation("a job begins again from " + wanted + ", but the piece is " +
                      text.value_or("not held"));
    }
    for (const auto& rows : piece.rows) {
      covered += (rows.end - rows.begin) * (std::min(piece.last_image, begin.last_image) -
                                            std::max(piece.first_image, begin.first_image));
    }
  }
  std::int64_t rows = 0;
  for (const auto& shares : begin.micro_steps) {
    for (const auto& share : shares.of_rank)
      rows += share.end - share.begin;
  }
  if (covered != rows * (begin.last_image - begin.first_image))
    throw Violation("the pieces of a boundary do not cover its pictures");
}

}  // namespace

template <class M>
void StageActor::answer(std::uint64_t correlation, const M& message) {
  wire::Header header;
  header.flags = wire::kFlagReply;
  header.correlation = correlation;
  world_.from_actor(incarnation_, correlation, wire::encode_frame(header, message));
}

template <class M>
void StageActor::tell(const M& message) {
  world_.from_actor(incarnation_, 0, wire::encode_frame({}, message));
}

std::uint64_t StageActor::keep(std::string bytes) {
  const auto id = world_.random();
  blobs_[id] = std::move(bytes);
  return id;
}

const std::string* StageActor::blob(std::uint64_t id) const {
  const auto found = blobs_.find(id);
  return found == blobs_.end() ? nullptr : &found->second;
}

void StageActor::receive(const std::string& frame) {
  const auto bytes = wire::as_bytes(frame);
  const auto header = wire::decode_header(bytes);
  const auto payload = wire::payload_of(bytes);
  const auto put = [&](auto content) {
    mailbox_.push_back({header.correlation, std::move(content)});
  };
  switch (header.kind) {
    case wire::Kind::run_tasks: {
      const auto tasks = wire::decode<wire::RunTasks>(payload);
      for (const auto& command : tasks.commands)
        put(Task{tasks.epoch, command});
      break;
    }
    case wire::Kind::load_stage:
      put(wire::decode<wire::LoadStage>(payload));
      break;
    case wire::Kind::connect_groups:
      put(wire::decode<wire::ConnectGroups>(payload));
      break;
    case wire::Kind::begin_job:
      put(wire::decode<wire::BeginJob>(payload));
      break;
    case wire::Kind::end_job:  // between two letters
      mailbox_.push_front({header.correlation, wire::decode<wire::EndJob>(payload)});
      break;
    case wire::Kind::unload:
      unloaded_.insert(wire::decode<wire::Unload>(payload).deployment);
      put(wire::decode<wire::Unload>(payload));
      break;
    case wire::Kind::abort_epoch: {
      const auto abort = wire::decode<wire::AbortEpoch>(payload);
      ended_.insert(abort.epoch);
      put(abort);
      break;
    }
    case wire::Kind::shutdown:
      return world_.leaves(incarnation_);
    default:
      throw Violation("an actor got a message of kind " +
                      std::to_string(static_cast<int>(header.kind)));
  }
  look();
}

void StageActor::look() {
  if (busy_ || mailbox_.empty() || hangs || stalls) return;
  busy_ = true;
  Letter letter = std::move(mailbox_.front());
  mailbox_.pop_front();
  ++work;
  std::visit([&](const auto& content) { on(letter.correlation, content); }, letter.content);
}

void StageActor::done() {
  busy_ = false;
  look();
}

void StageActor::on(std::uint64_t correlation, const wire::LoadStage& load) {
  const double seconds = world_.chance(world_.faults().slow_loads) ? 40 : world_.some(0.3);
  const auto& model = test::sample_model().transformer;
  const auto bytes = 4 * spec::kept_elements(model, {.first_block = load.first_block,
                                                     .last_block = load.last_block,
                                                     .embeds = load.embeds,
                                                     .projects = load.projects,
                                                     .shard = load.tp_rank,
                                                     .shards = load.tp_degree});
  world_.after(seconds, [this, correlation, bytes, id = load.deployment] {
    if (hangs || stalls) return;
    if (unloaded_.contains(id)) return done();  // left at the next tensor, and nobody waits
    if (world_.chance(world_.faults().failed_loads)) {
      answer(correlation, wire::Failure{wire::FailureCode::bad_request, "a tensor is missing"});
    } else {
      stages_[id] = bytes;
      std::uint64_t sum = 0;
      for (const auto& [deployment, own] : stages_)
        sum += own;
      world_.loaded(id_, sum);
      answer(correlation, wire::StageLoaded{100, 0.3});
    }
    done();
  });
}

void StageActor::on(std::uint64_t correlation, const wire::ConnectGroups& connect) {
  epochs_.insert(connect.epoch);
  wait_for_groups(correlation, connect, world_.now() + connect.deadline_ms * 1e-3, 0.001);
}

void StageActor::wait_for_groups(std::uint64_t correlation, const wire::ConnectGroups& connect,
                                 double until, double pause) {
  if (hangs || stalls) return;
  ++work;
  if (over(connect.epoch) || torn_.contains(connect.epoch) || world_.now() > until) {
    answer(correlation, wire::Failure{wire::FailureCode::internal, "a peer did not come"});
    return done();
  }
  bool all = true;
  for (const auto& group : connect.groups) {
    all &= world_.crossing().meet(connect.epoch, "group " + std::to_string(group.id), incarnation_,
                                  group.addresses.size());
  }
  if (all) {
    answer(correlation, wire::GroupsConnected{});
    return done();
  }
  world_.after(pause, [this, correlation, connect, until, pause] {
    wait_for_groups(correlation, connect, until, std::min(pause * 1.6, kLongestPause));
  });
}

void StageActor::on(std::uint64_t, const wire::BeginJob& begin) {
  if (!over(begin.epoch)) {
    if (!stages_.contains(begin.deployment))
      throw Violation("a job began on a deployment that is not loaded");
    if (!epochs_.contains(begin.epoch)) throw Violation("a job began in an unknown epoch");
    if (begin.first_step > 0) check_boundary(world_, begin);
    jobs_[begin.job] = {begin, begin.first_step};
  }
  done();
}

void StageActor::on(std::uint64_t correlation, const wire::EndJob& end) {
  jobs_.erase(end.job);
  answer(correlation, wire::ActorJobStats{});
  done();
}

void StageActor::on(std::uint64_t, const wire::Unload& unload) {
  stages_.erase(unload.deployment);
  done();
}

void StageActor::on(std::uint64_t correlation, const wire::AbortEpoch& abort) {
  std::erase_if(jobs_, [&](const auto& entry) { return entry.second.begin.epoch == abort.epoch; });
  epochs_.erase(abort.epoch);
  broken_.erase(abort.epoch);
  answer(correlation, wire::Done{});
  done();
}

void StageActor::on(std::uint64_t, const Task& task) {
  if (over(task.epoch)) return done();
  const auto& command = task.command;
  const auto found = jobs_.find(command.job);
  if (found == jobs_.end()) throw Violation("a task came for a job that has not begun");
  const auto& begin = found->second.begin;
  if (!command.receive) return wait_for_task(task, 0.001);
  const int behind = (begin.stage.rank + begin.stage.degree - 1) % begin.stage.degree;
  world_.crossing().posted(task.epoch, edge(begin, behind),
                           label(command, command.step, command.patch, command.part));
  done();
}

bool StageActor::inputs_here(const wire::BeginJob& begin, const wire::Command& command) const {
  if (command.kind != wire::TaskKind::micro_step || begin.stage.degree == 1) return true;
  const int behind = (begin.stage.rank + begin.stage.degree - 1) % begin.stage.degree;
  const auto here = [&](int patch, int part) {
    return world_.crossing().arrived(begin.epoch, edge(begin, behind),
                                     label(command, command.step, patch, part));
  };
  if (begin.stage.rank > 0) return here(command.patch, command.part);
  if (command.step == begin.first_step) return true;
  if (is_whole(begin.request, command.step - 1))
    return command.part != 0 || command.patch > 0 || here(-1, 0);
  if (command.patch >= 0) return here(command.patch, 0);
  bool all = true;
  for (int patch = 0; command.part == 0 && patch < static_cast<int>(begin.micro_steps.size());
       ++patch)
    all &= here(patch, 0);
  return all;
}

void StageActor::wait_for_task(const Task& task, double pause) {
  if (hangs || stalls) return;
  ++work;
  if (over(task.epoch)) return done();
  if (torn_.contains(task.epoch)) return fail_task(task, "rank 1 is gone", /*collateral=*/true);
  const auto& begin = jobs_.at(task.command.job).begin;
  const auto meeting = replica_of(begin) + " task " + std::to_string(task.command.task);
  const bool all =
      world_.crossing().meet(task.epoch, "job " + std::to_string(begin.job) + " " + meeting,
                             incarnation_, members_of(begin, task.command.kind));
  if (all && inputs_here(begin, task.command)) {
    world_.after(world_.some(0.01), [this, task] { finish_task(task); });
    return;
  }
  world_.after(pause,
               [this, task, pause] { wait_for_task(task, std::min(pause * 1.6, kLongestPause)); });
}

void StageActor::fail_task(const Task& task, const std::string& why, bool collateral) {
  broken_.insert(task.epoch);
  tell(wire::TaskFailed{.epoch = task.epoch,
                        .job = task.command.job,
                        .task = task.command.task,
                        .failure = {wire::FailureCode::internal, why},
                        .collateral = collateral});
  done();
}

void StageActor::send_on(const wire::BeginJob& begin, const Task& task) {
  const auto& command = task.command;
  if (begin.stage.degree == 1) return;
  const auto out = edge(begin, begin.stage.rank);
  if (begin.stage.rank + 1 < begin.stage.degree) {
    world_.crossing().sent(task.epoch, out,
                           label(command, command.step, command.patch, command.part));
  } else if (command.step + 1 < begin.request.steps &&
             (command.patch >= 0 || ends_step(begin, command))) {
    world_.crossing().sent(task.epoch, out, label(command, command.step + 1, command.patch, 0));
  }
}

void StageActor::finish_task(const Task& task) {
  if (hangs || stalls) return;
  if (over(task.epoch)) return done();
  const auto& command = task.command;
  auto& job = jobs_.at(command.job);
  const auto& begin = job.begin;
  if (world_.chance(world_.faults().failed_tasks))
    return fail_task(task, "an exception", /*collateral=*/false);
  wire::TaskDone done_message;
  done_message.epoch = task.epoch;
  done_message.job = command.job;
  done_message.task = command.task;
  if (command.kind == wire::TaskKind::micro_step) {
    if (command.step != job.next_step)
      throw Violation("step " + std::to_string(command.step) + " came where " +
                      std::to_string(job.next_step) + " was due");
    send_on(begin, task);
    if (ends_step(begin, command)) ++job.next_step;
    bool rows = false;
    for (const auto& shares : begin.micro_steps) {
      const auto& own =
          shares.of_rank.at(begin.ring.rank * begin.ulysses.degree + begin.ulysses.rank);
      rows |= own.begin < own.end;
    }
    const bool last = begin.stage.rank + 1 == begin.stage.degree;
    if (last && rows && ends_step(begin, command) && begin.cfg.rank == 0 && begin.tp.rank == 0) {
      const auto id =
          keep("job " + std::to_string(command.job) + " next " + std::to_string(job.next_step));
      done_message.blobs.push_back({"boundary", id, 1, {1}});
    }
  }
  if (command.kind == wire::TaskKind::decode && begin.vae.degree > 0) {
    if (job.next_step != begin.request.steps) throw Violation("a picture was decoded too early");
    if (begin.vae.rank == 0) {
      for (int image = begin.first_image; image < begin.last_image; ++image)
        done_message.blobs.push_back({"picture", keep("picture"), 7, {}});
    }
  }
  tell(done_message);
  done();
}

}  // namespace troupe::sim
