#include "tests/sim/stage_actor.h"

#include <algorithm>

#include "tests/controller/sample_model.h"
#include "tests/sim/world.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"
#include "transport/wire/inspect_messages.h"

namespace troupe::sim {
namespace {

/// Pieces must cover every row of every picture, and say where the job goes on. False when one of
/// them is not held any more.
bool check_boundary(const World& world, const wire::BeginJob& begin) {
  std::int64_t covered = 0;
  for (const auto& piece : begin.boundary) {
    const auto text = world.held_blob(piece.blob.id);
    if (!text) return false;
    const std::string wanted =
        "job " + std::to_string(begin.job) + " next " + std::to_string(begin.first_step);
    if (*text != wanted)
      throw Violation("a job begins again from " + wanted + ", but the piece is " + *text);
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
  return true;
}

}  // namespace

std::string picture_text(std::uint64_t seed, int picture) {
  return "picture " + std::to_string(picture) + " of seed " + std::to_string(seed);
}

std::string latent_text(std::uint64_t seed, int picture) {
  return {static_cast<char>(seed), static_cast<char>(picture)};
}

template <class M>
void StageActor::answer(std::uint64_t correlation, const M& message) {
  wire::Header header;
  header.flags = wire::kFlagReply;
  header.correlation = correlation;
  world_.from_actor(incarnation_, correlation, wire::encode_frame(header, message));
}

std::uint64_t StageActor::keep(Job& job, std::string bytes) {
  const auto id = world_.random();
  blobs_[id] = std::move(bytes);
  job.blobs.push_back(id);
  return id;
}

std::uint64_t StageActor::keep_boundary(Job& job, std::string bytes) {
  constexpr std::size_t kNewest = 4;
  const auto id = keep(job, std::move(bytes));
  job.boundaries.push_back(id);
  if (job.boundaries.size() > kNewest) {
    blobs_.erase(job.boundaries.front());
    job.boundaries.pop_front();
  }
  return id;
}

void StageActor::forget(const Job& job) {
  for (const auto id : job.blobs)
    blobs_.erase(id);
}

bool StageActor::rests() const {
  return world_.now() < rests_until_;
}

void StageActor::rest(double seconds) {
  if (!rests()) rests_since_ = world_.now();
  rests_until_ = std::max(rests_until_, world_.now() + seconds);
  world_.at(rests_until_, [this] { look(); });
}

void StageActor::stall() {
  stalls_ = true;
  if (!rests()) rests_since_ = world_.now();
}

double StageActor::last_progress() const {
  return stalls_ || rests() ? rests_since_ : world_.now();
}

void StageActor::later(double seconds, std::function<void()> action) {
  world_.after(seconds, [this, action = std::move(action)] { act(action); });
}

void StageActor::act(const std::function<void()>& action) {
  if (hangs || stalls_) return;
  if (rests()) return world_.at(rests_until_, [this, action] { act(action); });
  action();
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
    case wire::Kind::end_job: {  // between two messages, but behind what is left of the job
      const auto end = wire::decode<wire::EndJob>(payload);
      const bool more = std::any_of(mailbox_.begin(), mailbox_.end(), [&](const Message& message) {
        const auto* begin = std::get_if<wire::BeginJob>(&message.content);
        const auto* task = std::get_if<Task>(&message.content);
        return (begin && begin->job == end.job) || (task && task->command.job == end.job);
      });
      mailbox_.insert(more ? mailbox_.end() : mailbox_.begin(), {header.correlation, end});
      break;
    }
    case wire::Kind::unload: {
      const auto unload = wire::decode<wire::Unload>(payload);
      if (!unload.encoders_alone) unloaded_.insert(unload.deployment);
      put(unload);
      break;
    }
    case wire::Kind::abort_epoch: {
      const auto abort = wire::decode<wire::AbortEpoch>(payload);
      ended_.insert(abort.epoch);
      put(abort);
      break;
    }
    case wire::Kind::control_job:
      watched_.insert(wire::decode<wire::ControlJob>(payload).job);
      return;
    case wire::Kind::ping:  // the link's own thread answers
      if (!hangs) answer(header.correlation, wire::Pong{wire::decode<wire::Ping>(payload).data});
      return;
    case wire::Kind::shutdown:
      return world_.leaves(incarnation_);
    default:
      throw Violation("an actor got a message of kind " +
                      std::to_string(static_cast<int>(header.kind)));
  }
  look();
}

void StageActor::look() {
  if (busy_ || mailbox_.empty() || hangs || stalls_ || rests()) return;
  busy_ = true;
  Message message = std::move(mailbox_.front());
  mailbox_.pop_front();
  std::visit([&](const auto& content) { on(message.correlation, content); }, message.content);
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
  later(seconds, [this, correlation, bytes, id = load.deployment] {
    if (unloaded_.contains(id)) return done();  // left at the next tensor, and nobody waits
    if (world_.chance(world_.faults().failed_loads)) {
      answer(correlation, wire::Failure{wire::FailureCode::bad_request, "a tensor is missing"});
    } else {
      stages_[id] = bytes;
      world_.loaded();
      tell_held();
      answer(correlation, wire::StageLoaded{100, 0.3});
    }
    done();
  });
}

void StageActor::tell_held() const {
  std::uint64_t sum = 0;
  for (const auto* kept : {&stages_, &encoders_})
    for (const auto& [deployment, bytes] : *kept)
      sum += bytes;
  world_.holds(id_, sum);
}

void StageActor::on(std::uint64_t correlation, const wire::ConnectGroups& connect) {
  epochs_.insert(connect.epoch);
  wait_for_groups(correlation, connect, world_.now() + connect.deadline_ms * 1e-3, 0.001);
}

void StageActor::wait_for_groups(std::uint64_t correlation, const wire::ConnectGroups& connect,
                                 double until, double pause) {
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
  later(pause, [this, correlation, connect, until, pause] {
    wait_for_groups(correlation, connect, until, std::min(pause * 1.6, kLongestPause));
  });
}

void StageActor::on(std::uint64_t, const wire::BeginJob& begin) {
  if (!over(begin.epoch)) {
    if (!stages_.contains(begin.deployment))
      throw Violation("a job began on a deployment that is not loaded");
    if (!epochs_.contains(begin.epoch)) throw Violation("a job began in an unknown epoch");
    if (std::ssize(begin.steps) != begin.request.steps)
      throw Violation("a job began without saying how each step is computed");
    if (begin.keep_encoders) {
      auto& bytes = encoders_[begin.deployment] = 0;
      const auto& encoders = test::sample_model().text_encoders;
      for (std::size_t i = 0; i < encoders.size(); ++i)
        if (begin.encoder_ranks.at(i) == begin.caption_rank)
          bytes += spec::encoder_bytes(encoders[i], 4);
      tell_held();
    } else {
      encoders_.erase(begin.deployment);
    }
    if (begin.first_step > 0 && !check_boundary(world_, begin)) return fail_begin(begin);
    jobs_[begin.job] = {begin, begin.first_step};
  }
  done();
}

void StageActor::on(std::uint64_t correlation, const wire::EndJob& end) {
  if (const auto job = jobs_.find(end.job); job != jobs_.end()) {
    forget(job->second);
    jobs_.erase(job);
  }
  answer(correlation, wire::ActorJobStats{});
  done();
}

void StageActor::on(std::uint64_t, const wire::Unload& unload) {
  if (!unload.encoders_alone) stages_.erase(unload.deployment);
  if (encoders_.erase(unload.deployment) > 0 && unload.encoders_alone) world_.encoders_given_up();
  done();
}

void StageActor::on(std::uint64_t correlation, const wire::AbortEpoch& abort) {
  std::erase_if(jobs_, [&](const auto& entry) {
    const bool over = entry.second.begin.epoch == abort.epoch;
    if (over) forget(entry.second);
    return over;
  });
  epochs_.erase(abort.epoch);
  broken_.erase(abort.epoch);
  answer(correlation, wire::Done{});
  done();
}

}  // namespace troupe::sim
