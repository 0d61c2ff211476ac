#include "benchmarks/dispatch/alone.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <deque>
#include <queue>
#include <tuple>
#include <utility>

#include "controller/schedule/dispatcher.h"
#include "models/spec/model_spec.h"

namespace troupe::bench {
namespace {

using schedule::ActorId;
using schedule::JobId;
using Clock = std::chrono::steady_clock;

plan::Plan plan_of(const wire::Parallelism& degrees) {
  static const auto model = spec::read_model_spec(TROUPE_SOURCE_DIR "/examples/demo/model");
  return plan::make_plan(model, request_of(degrees), degrees);
}

struct End {
  JobId job;
  std::uint32_t task;
  ActorId actor;
};

class Play {
 public:
  Play(const DispatchShape& shape, double task_seconds)
      : plan_(plan_of(shape.degrees)),
        graph_(schedule::make_task_graph(plan_)),
        world_(plan_.degrees.world()),
        task_seconds_(task_seconds),
        actors_(static_cast<std::size_t>(shape.jobs) * world_),
        begun_(actors_.size(), Key{~JobId{0}, 0}),
        successors_(graph_.tasks.size()) {
    for (std::uint32_t task = 0; task < graph_.tasks.size(); ++task) {
      for (const auto before : graph_.tasks[task].predecessors)
        successors_[before].push_back(task);
    }
    add_jobs(dispatcher_);
  }

  /// The ends of all tasks, in their order.
  const std::vector<End>& run() {
    take(schedule::outbox_messages(dispatcher_.issue(), epoch_of));
    while (!running_.empty()) {
      const auto [end, job, task] = running_.top();
      running_.pop();
      now_ = end;
      for (const auto rank : graph_.tasks[task].ranks) {
        actors_[actor_of(job, rank)].pop_front();
        tell_end(job, task, actor_of(job, rank));
      }
      for (const auto rank : graph_.tasks[task].ranks)
        begin(actor_of(job, rank));
      for (const auto after : successors_[task])
        begin(actor_of(job, graph_.tasks[after].ranks.front()));
    }
    return ends_;
  }

  /// Processor seconds of another dispatcher's calls, told of the same ends.
  double replay() const {
    schedule::Dispatcher dispatcher{6};
    add_jobs(dispatcher);
    schedule::outbox_messages(dispatcher.issue(), epoch_of);
    const auto from = std::clock();
    for (const auto& end : ends_) {
      dispatcher.finish(end.job, end.task, end.actor, task_seconds_);
      schedule::outbox_messages(dispatcher.issue(), epoch_of);
    }
    return static_cast<double>(std::clock() - from) / CLOCKS_PER_SEC;
  }

  /// The longest time that the calls after one end took, seconds.
  double worst() const { return worst_; }

 private:
  using Key = std::pair<JobId, std::uint32_t>;

  void add_jobs(schedule::Dispatcher& dispatcher) const {
    const auto jobs = static_cast<JobId>(actors_.size() / world_);
    for (JobId job = 0; job < jobs; ++job) {
      std::vector<ActorId> places;
      for (std::size_t rank = 0; rank < world_; ++rank)
        places.push_back(actor_of(job, rank));
      dispatcher.add_job(job, graph_, places, {.machine = job + 1});
    }
  }

  static std::uint64_t epoch_of(JobId job) { return job + 1; }
  ActorId actor_of(JobId job, std::size_t rank) const {
    return static_cast<ActorId>(job * world_ + rank);
  }

  void tell_end(JobId job, std::uint32_t task, ActorId actor) {
    const auto from = Clock::now();
    dispatcher_.finish(job, task, actor, task_seconds_);
    const auto messages = schedule::outbox_messages(dispatcher_.issue(), epoch_of);
    worst_ = std::max(worst_, std::chrono::duration<double>(Clock::now() - from).count());
    ends_.push_back({job, task, actor});
    take(messages);
  }

  void take(const std::vector<schedule::OutboxMessage>& messages) {
    for (const auto& message : messages) {
      for (const auto& command : message.tasks.commands) {
        if (!command.receive) actors_[message.actor].emplace_back(command.job, command.task);
      }
    }
    for (const auto& message : messages)
      begin(message.actor);
  }

  /// Begins this actor's first task, if it is the first of all its members and its predecessors are
  /// done.
  void begin(ActorId actor) {
    if (actors_[actor].empty()) return;
    const auto key = actors_[actor].front();
    const auto [job, id] = key;
    const auto& task = graph_.tasks[id];
    if (key == begun_of(job, task)) return;
    for (const auto rank : task.ranks) {
      const auto& queue = actors_[actor_of(job, rank)];
      if (queue.empty() || queue.front() != key) return;
    }
    for (const auto before : task.predecessors) {
      if (!dispatcher_.is_done(job, before)) return;
    }
    begun_of(job, task) = key;
    running_.emplace(now_ + task_seconds_, job, id);
  }

  Key& begun_of(JobId job, const schedule::Task& task) {
    return begun_[actor_of(job, task.ranks.front())];
  }

  plan::Plan plan_;
  schedule::TaskGraph graph_;
  std::size_t world_;
  double task_seconds_;
  schedule::Dispatcher dispatcher_{6};
  std::vector<std::deque<Key>> actors_;
  std::vector<Key> begun_;  // by a task's first member: the last that began there
  std::vector<std::vector<std::uint32_t>> successors_;
  std::priority_queue<std::tuple<double, JobId, std::uint32_t>,
                      std::vector<std::tuple<double, JobId, std::uint32_t>>, std::greater<>>
      running_;
  double now_ = 0;
  std::vector<End> ends_;
  double worst_ = 0;
};

}  // namespace

DispatchFigures dispatch_alone(const DispatchShape& shape, double task_seconds,
                               std::size_t least_ends) {
  Play play(shape, task_seconds);
  DispatchFigures best{.ends = play.run().size(), .worst = play.worst()};
  for (std::size_t ends = 0; ends < least_ends; ends += best.ends) {
    const double seconds = play.replay();
    if (ends == 0 || seconds < best.seconds) best.seconds = seconds;
  }
  best.jobs = shape.jobs;
  best.actors = shape.jobs * actors_of(shape.degrees);
  return best;
}

int actors_of(const wire::Parallelism& degrees) {
  return degrees.dp * degrees.cfg * degrees.pp * degrees.ulysses * degrees.ring * degrees.tp;
}

wire::ImageRequest request_of(const wire::Parallelism& degrees) {
  wire::ImageRequest request;
  request.prompts = {"a red circle"};
  request.height = request.width = 1024;
  request.steps = 20;
  request.method = Method::pipefusion;
  request.num_pipeline_patch = 16;
  request.guidance_scale = degrees.cfg == 2 ? 4.5 : 1.0;
  return request;
}

}  // namespace troupe::bench
