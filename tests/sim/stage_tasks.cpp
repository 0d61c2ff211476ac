#include <algorithm>

#include "tests/sim/stage_actor.h"
#include "tests/sim/world.h"
#include "transport/wire/codec.h"

// Tasks of an actor: they wait for their inputs and peers, and tell how they ended.
namespace troupe::sim {
namespace {

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

/// A group belongs to one epoch, and to one pair of actors.
std::string edge(const wire::SkipEdge& skip) {
  return "skip edge, group " + std::to_string(skip.group);
}

bool ends_step(const wire::BeginJob& begin, const wire::Command& command) {
  return command.patch < 0 ? command.part + 1 == static_cast<int>(begin.batch_parts.size())
                           : command.patch + 1 == static_cast<int>(begin.micro_steps.size());
}

double parts_of(const wire::BeginJob& begin, const wire::Command& command) {
  std::size_t parts = 1;
  if (command.kind == wire::TaskKind::decode) parts = begin.decode_parts.size();
  if (command.kind == wire::TaskKind::micro_step && command.patch < 0)
    parts = begin.batch_parts.size();
  return static_cast<double>(std::max<std::size_t>(parts, 1));
}

std::size_t members_of(const wire::BeginJob& begin, const wire::Command& command) {
  const auto kind = command.kind;
  const auto stage = static_cast<std::size_t>(begin.cfg.degree * begin.ring.degree *
                                              begin.ulysses.degree * begin.tp.degree);
  if (kind == wire::TaskKind::micro_step) return stage;
  if (kind == wire::TaskKind::encode_text) return stage * begin.stage.degree;
  if (begin.row_rank < 0) return 1;
  if (command.part > 0) return static_cast<std::size_t>(begin.row_decoders);
  std::set<int> members(begin.row_holders.begin(), begin.row_holders.end());
  for (int decoder = 0; decoder < begin.row_decoders; ++decoder)
    members.insert(decoder);
  return members.size();
}

std::pair<std::uint64_t, int> seed_of(const wire::ImageRequest& request, int image) {
  for (const auto& run : request.seeds) {
    if (image < run.pictures) return {run.seed, image};
    image -= run.pictures;
  }
  return {request.seed, image};
}

}  // namespace

template <class M>
void StageActor::tell(const M& message) {
  world_.from_actor(incarnation_, 0, wire::encode_frame({}, message));
}

void StageActor::on(std::uint64_t, const Task& task) {
  if (over(task.epoch)) return done();
  const auto& command = task.command;
  const auto found = jobs_.find(command.job);
  if (found == jobs_.end()) throw Violation("a task came for a job that has not begun");
  const auto& begin = found->second.begin;
  if (!command.receive) return wait_for_task(task, 0.001);
  const int behind = (begin.stage.rank + begin.stage.degree - 1) % begin.stage.degree;
  const auto& skips = begin.groups.skips_from;
  const auto skip = std::ranges::find(skips, command.stage, &wire::SkipEdge::stage);
  if (command.stage != behind && skip == skips.end())
    throw Violation("a receive came from a stage that sends nothing here");
  world_.crossing().posted(task.epoch, command.stage == behind ? edge(begin, behind) : edge(*skip),
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
  if (begin.stage.rank > 0) {
    const auto what = label(command, command.step, command.patch, command.part);
    return here(command.patch, command.part) &&
           std::ranges::all_of(begin.groups.skips_from, [&](const wire::SkipEdge& skip) {
             return world_.crossing().arrived(begin.epoch, edge(skip), what);
           });
  }
  if (command.step == begin.first_step) return true;
  if (wire::is_whole(begin.steps.at(command.step - 1)))
    return command.part != 0 || command.patch > 0 || here(-1, 0);
  if (command.patch >= 0) return here(command.patch, 0);
  bool all = true;
  for (int patch = 0; command.part == 0 && patch < static_cast<int>(begin.micro_steps.size());
       ++patch)
    all &= here(patch, 0);
  return all;
}

void StageActor::wait_for_task(const Task& task, double pause) {
  if (over(task.epoch)) return done();
  if (torn_.contains(task.epoch)) return fail_task(task, "rank 1 is gone", /*collateral=*/true);
  const auto& begin = jobs_.at(task.command.job).begin;
  const auto meeting = replica_of(begin) + " task " + std::to_string(task.command.task);
  const bool all =
      world_.crossing().meet(task.epoch, "job " + std::to_string(begin.job) + " " + meeting,
                             incarnation_, members_of(begin, task.command));
  if (all && inputs_here(begin, task.command)) {
    // Parts of one step, or of one decoding, take as long together as one that is not cut.
    const auto seconds = world_.some(0.01) / parts_of(begin, task.command);
    later(seconds, [this, task] { finish_task(task); });
    return;
  }
  later(pause, [this, task, pause] { wait_for_task(task, std::min(pause * 1.6, kLongestPause)); });
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

void StageActor::fail_begin(const wire::BeginJob& begin) {
  broken_.insert(begin.epoch);
  tell(wire::TaskFailed{.epoch = begin.epoch,
                        .job = begin.job,
                        .failure = {wire::FailureCode::not_found, "its latents are gone"},
                        .begin = true});
  done();
}

void StageActor::send_on(const wire::BeginJob& begin, const Task& task) {
  const auto& command = task.command;
  if (begin.stage.degree == 1) return;
  const auto out = edge(begin, begin.stage.rank);
  if (begin.stage.rank + 1 < begin.stage.degree) {
    const auto what = label(command, command.step, command.patch, command.part);
    world_.crossing().sent(task.epoch, out, what);
    for (const auto& skip : begin.groups.skips_to)
      world_.crossing().sent(task.epoch, edge(skip), what);
  } else if (command.step + 1 < begin.request.steps &&
             (command.patch >= 0 || ends_step(begin, command))) {
    world_.crossing().sent(task.epoch, out, label(command, command.step + 1, command.patch, 0));
  }
}

void StageActor::finish_task(const Task& task) {
  if (over(task.epoch)) return done();
  const auto& command = task.command;
  auto& job = jobs_.at(command.job);
  const auto& begin = job.begin;
  if (world_.chance(world_.faults().failed_tasks))
    return fail_task(task, "an exception", /*collateral=*/false);
  if (watched_.contains(command.job) && world_.chance(world_.faults().not_finite_tasks)) {
    tell(wire::TaskFailed{.epoch = task.epoch,
                          .job = command.job,
                          .task = command.task,
                          .failure = {wire::FailureCode::internal, "a NaN"},
                          .goes_on = true});
  }
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
      const auto id = keep_boundary(
          job, "job " + std::to_string(command.job) + " next " + std::to_string(job.next_step));
      done_message.blobs.push_back({"boundary", id, 1, {1}});
    }
  }
  if (command.kind == wire::TaskKind::decode && begin.vae.degree > 0) {
    if (job.next_step != begin.request.steps) throw Violation("a picture was decoded too early");
    if (begin.vae.rank == 0) {
      std::string latents;
      const auto& part = begin.decode_parts.at(command.part);
      for (int image = begin.first_image; image < begin.last_image; ++image) {
        const auto [seed, own] = seed_of(begin.request, image);
        const auto picture = picture_text(seed, own);
        latents += latent_text(seed, own);
        const int of_replica = image - begin.first_image;
        if (of_replica < part.begin || of_replica >= part.end) continue;
        done_message.blobs.push_back({"picture", keep(job, picture), picture.size(), {}});
      }
      const auto bytes = latents.size();
      if (begin.request.want_latents && part.end == begin.last_image - begin.first_image) {
        done_message.blobs.push_back({"latents",
                                      keep(job, std::move(latents)),
                                      bytes,
                                      {begin.last_image - begin.first_image}});
      }
    }
  }
  tell(done_message);
  done();
}

}  // namespace troupe::sim
