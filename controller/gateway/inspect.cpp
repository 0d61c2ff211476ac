#include "controller/gateway/inspect.h"

#include "controller/gateway/permissions.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <type_traits>

#include "models/spec/parse_number.h"
#include "transport/wire/done.h"

namespace troupe::gateway {
namespace {

using wire::FailureCode;

constexpr control::Milliseconds kClockDeadline{2'000};
constexpr double kClockInterval = 10;
constexpr int kFirstReadings = 4;

std::string name_of(jobs::JobId job) {
  return "job " + std::to_string(job);
}

/// What an actor says, which knows a batch by its number only: "job 9" becomes what the recorder
/// calls it, "batch 9 (jobs 3, 5)".
std::string with_batches_named(const std::string& said, const recorder::Recorder& recorder) {
  const std::string word = "job ";
  std::string text;
  for (std::size_t at = 0; at < said.size();) {
    const auto found = said.find(word, at);
    if (found == std::string::npos) return text + said.substr(at);
    const auto digits = found + word.size();
    const auto end = std::min(said.find_first_not_of("0123456789", digits), said.size());
    const auto number = spec::parse_number<jobs::JobId>(said.substr(digits, end - digits));
    const auto* notes = number ? recorder.find(*number) : nullptr;
    text += said.substr(at, found - at);
    text += notes && !notes->name.empty() ? notes->name : said.substr(found, end - found);
    at = end;
  }
  return text;
}

std::string name_of_actor(std::uint32_t actor) {
  return "actor " + std::to_string(actor);
}

}  // namespace

recorder::Nanoseconds InspectDesk::now() const {
  return std::llround(tools_.outside.now() * 1e9);
}

void InspectDesk::refuse(const Asker& asker, FailureCode code, const std::string& why) {
  reply(asker, wire::Failure{code, why});
}

const jobs::JobEntry* InspectDesk::job_for(const Asker& asker, jobs::JobId id) {
  const auto* job = tools_.table.find(id);
  const auto user = tools_.server.user(asker.peer);
  if (job && may_see(user, *job)) return job;
  if (job)
    refuse(asker, FailureCode::refused, job_refusal(user, id));
  else
    refuse(asker, FailureCode::not_found, "job " + std::to_string(id) + " is not known here");
  return nullptr;
}

const cluster::Actor* InspectDesk::ready_actor(const Asker& asker, std::uint32_t id) {
  const auto& all = tools_.members.all();
  const auto found = all.find(id);
  if (found == all.end()) {
    refuse(asker, FailureCode::not_found, name_of_actor(id) + " is not known here");
    return nullptr;
  }
  if (found->second.state != cluster::ActorState::ready) {
    refuse(asker, FailureCode::lost,
           name_of_actor(id) + " is " + cluster::to_string(found->second.state));
    return nullptr;
  }
  return &found->second;
}

template <class Answer, class M>
void InspectDesk::pass_on(const Asker& asker, const M& message, std::uint32_t actor) {
  const auto* member = ready_actor(asker, actor);
  if (!member) return;
  tools_.outside.request(
      member->peer, message, kActorDeadline, [this, asker, actor](const control::Reply& answer) {
        if (answer) {
          auto told = answer.as<Answer>();
          if constexpr (std::is_same_v<Answer, wire::MailboxReport>)
            told.doing = with_batches_named(told.doing, tools_.recorder);
          return reply(asker, told);
        }
        const auto& failure = answer.failure();
        const bool lost = failure.code == FailureCode::lost;
        refuse(asker, failure.code,
               name_of_actor(actor) +
                   (lost ? " was lost before it answered"
                         : ": " + with_batches_named(failure.what, tools_.recorder)));
      });
}

bool InspectDesk::on_message(control::PeerId peer, const wire::Header& header,
                             std::span<const std::byte> payload) {
  const Asker asker{peer, header};
  switch (header.kind) {
    case wire::Kind::get_mailbox: {
      const auto question = wire::decode<wire::GetMailbox>(payload);
      pass_on<wire::MailboxReport>(asker, question, question.actor);
      return true;
    }
    case wire::Kind::get_tensors: {
      auto question = wire::decode<wire::GetTensors>(payload);
      question.job = tools_.runner.run_of(question.job);
      pass_on<wire::TensorReport>(asker, question, question.actor);
      return true;
    }
    case wire::Kind::get_slice: {
      auto question = wire::decode<wire::GetSlice>(payload);
      question.job = tools_.runner.run_of(question.job);
      pass_on<wire::TensorSlice>(asker, question, question.actor);
      return true;
    }
    case wire::Kind::get_latents:
      get_latents(asker, wire::decode<wire::GetLatents>(payload));
      return true;
    case wire::Kind::control_job:
      control_job(asker, wire::decode<wire::ControlJob>(payload));
      return true;
    case wire::Kind::inject_fault:
      inject(asker, wire::decode<wire::InjectFault>(payload));
      return true;
    case wire::Kind::get_document:
      get_document(asker, wire::decode<wire::GetDocument>(payload));
      return true;
    case wire::Kind::get_logs:
      get_logs(asker, wire::decode<wire::GetLogs>(payload));
      return true;
    default:
      return false;
  }
}

void InspectDesk::control_job(const Asker& asker, const wire::ControlJob& order) {
  const auto* job = job_for(asker, order.job);
  if (!job) return;
  auto& runner = tools_.runner;
  const auto name = name_of(order.job);
  if (wire::is_terminal(job->state)) {
    return refuse(
        asker, FailureCode::bad_request,
        name + " has already " +
            (job->state == wire::JobState::cancelled ? "been cancelled"
                                                     : std::string(wire::to_string(job->state))));
  }
  if (const auto run = runner.run_of(order.job); run != order.job) {
    return refuse(asker, FailureCode::bad_request,
                  name + " computes in " + runner.name_of(run) +
                      ": who wants to stop it hands it in without --may-batch");
  }
  const bool begun = runner.dispatcher().has(order.job);
  if (order.action == wire::JobAction::pause) {
    if (!runner.pause(order.job))
      return refuse(asker, FailureCode::bad_request, name + " is paused already");
    return reply(asker, wire::Done{name + (begun ? " is paused; what was issued runs to its end"
                                                 : " will be paused when it begins")});
  }
  if (!runner.paused(order.job))
    return refuse(asker, FailureCode::bad_request, name + " is not paused");
  if (order.action == wire::JobAction::resume) {
    runner.resume(order.job);
    return reply(asker, wire::Done{name + " goes on"});
  }
  const auto* notes = tools_.recorder.find(order.job);
  const auto issued = [&]() -> const recorder::TaskNote* {
    if (!notes || notes->attempts.empty() || notes->attempts.back().notes.empty()) return nullptr;
    return &notes->attempts.back().notes.back();
  };
  const auto* before = issued();
  if (!begun || !runner.step(order.job)) {
    return refuse(asker, FailureCode::bad_request,
                  name + (begun ? " has no task left to issue" : " has not begun yet"));
  }
  const auto* after = issued();
  if (!after || after == before)
    return reply(asker, wire::Done{name + ": one more task goes as soon as its actors have room"});
  reply(asker, wire::Done{name + ": " +
                          schedule::describe(notes->attempts.back().graph.tasks[after->task])});
}

void InspectDesk::inject(const Asker& asker, const wire::InjectFault& fault) {
  const auto* actor = ready_actor(asker, fault.actor);
  if (!actor) return;
  const auto name = name_of_actor(fault.actor);
  if (!std::isfinite(fault.seconds) || fault.seconds < 0 || fault.seconds > 3600)
    return refuse(asker, FailureCode::bad_request, "seconds: a number from 0 to 3600");
  const auto note = [&](const std::string& what) {
    tools_.recorder.note(recorder::Event::Kind::actor, 0, fault.actor, "injected: " + what, now());
    return what;
  };
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g s", fault.seconds);
  switch (fault.fault) {
    case wire::FaultKind::kill:
      if (!tools_.signal(fault.actor, SIGKILL))
        return refuse(asker, FailureCode::lost, name + " has no process on this host");
      return reply(asker, wire::Done{name + " " + note("is killed")});
    case wire::FaultKind::stop: {
      if (!tools_.signal(fault.actor, SIGSTOP))
        return refuse(asker, FailureCode::lost, name + " has no process on this host");
      tools_.outside.after(fault.seconds,
                           [this, id = fault.actor, incarnation = actor->incarnation] {
                             if (tools_.members.at(id).incarnation == incarnation)
                               tools_.signal(id, SIGCONT);
                           });
      return reply(asker, wire::Done{name + " " + note(std::string("is stopped for ") + seconds)});
    }
    default:
      break;
  }
  std::string what = "throws in its next task";
  if (fault.fault == wire::FaultKind::not_finite) what = "meets a NaN in its next micro-step";
  if (fault.fault == wire::FaultKind::delay)
    what = std::string("begins its next task ") + seconds + " later";
  if (fault.fault == wire::FaultKind::device_error) what = "loses its device in its next task";
  if (actor->jobs.empty()) what += "; it has no job now: this waits for its next one";
  tools_.outside.request(
      actor->peer, fault, kActorDeadline, [this, asker, name, what](const control::Reply& answer) {
        if (answer) return reply(asker, wire::Done{name + " " + what});
        refuse(asker, answer.failure().code, name + ": " + answer.failure().what);
      });
  note(what);
}

void InspectDesk::actor_ready(cluster::ActorId actor) {
  tools_.recorder.note(recorder::Event::Kind::actor, 0, actor, "is ready", now());
  read_clock(actor, tools_.members.at(actor).incarnation, kFirstReadings);
}

void InspectDesk::read_clock(cluster::ActorId id, std::uint64_t incarnation, int readings) {
  const auto& actor = tools_.members.at(id);
  if (actor.incarnation != incarnation || actor.state != cluster::ActorState::ready) return;
  tools_.outside.request(actor.peer, wire::ReadClock{}, kClockDeadline,
                         [this, id, incarnation, sent = now()](const control::Reply& answer) {
                           if (!answer) return;
                           tools_.recorder.clock_reading(
                               id, incarnation, sent, now(),
                               answer.as<wire::ClockReading>().monotonic_ns);
                         });
  tools_.outside.after(readings > 1 ? 0.05 : kClockInterval, [this, id, incarnation, readings] {
    read_clock(id, incarnation, std::max(1, readings - 1));
  });
}

}  // namespace troupe::gateway
