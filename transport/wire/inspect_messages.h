#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/choice.h"
#include "transport/wire/job.h"
#include "transport/wire/kind.h"

namespace troupe {
namespace wire {

/// Phase of the work loop at which an actor can be held.
enum class HoldPhase : std::uint8_t { loading, connecting, beginning, text, step, decode, ending };

}  // namespace wire

template <>
inline constexpr auto kNamesOf<wire::HoldPhase> = std::to_array<std::string_view>(
    {"loading", "connecting", "beginning", "text", "step", "decode", "ending"});

}  // namespace troupe

/// Seeing inside a running cluster. A client asks the controller; what an actor must answer the
/// controller passes on as it is. Every request may be answered by Failure instead.
namespace troupe::wire {

/// client → controller → actor, second lane. Answered by MailboxReport, also while a task runs.
struct GetMailbox {
  static constexpr Kind kKind = Kind::get_mailbox;
  std::uint32_t actor = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor);
  }
};

/// One entry of an actor's mailbox.
struct MailboxRow {
  std::string what;       // "micro-step", "receive", "text", "decode", "load", "connect", …
  std::uint64_t job = 0;  // 0 = of no job
  std::int32_t step = -1;
  std::int32_t patch = -1;
  std::int32_t part = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(what, job, step, patch, part);
  }
};

struct MailboxReport {
  static constexpr Kind kKind = Kind::mailbox_report;
  std::string doing;                // "job 3 step 5 patch 1", or empty
  double doing_seconds = 0;         // since that began
  std::uint64_t total = 0;          // messages that wait
  std::uint64_t handled = 0;        // messages since the process began
  std::vector<MailboxRow> entries;  // the first of them, in order

  template <class Archive>
  void serialize(Archive& ar) {
    ar(doing, doing_seconds, total, handled, entries);
  }
};

enum class JobAction : std::uint8_t { pause, step, resume, until, until_not_finite };
constexpr bool is_valid(JobAction action) {
  return action <= JobAction::until_not_finite;
}

/// client → controller: stop issuing the job's micro-steps, issue one, go on, issue those up to
/// the end of `step` and no more, or go on until something that it makes is not finite. Answered by
/// Done. The last one goes to the job's actors as well, second lane and unanswered: they tell of it
/// from then on instead of failing.
struct ControlJob {
  static constexpr Kind kKind = Kind::control_job;
  std::uint64_t job = 0;
  JobAction action = JobAction::pause;
  std::int32_t step = 0;  // of until

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, action, step);
  }
};

enum class FaultKind : std::uint8_t {
  kill,          // SIGKILL
  stop,          // SIGSTOP, and SIGCONT after `seconds`
  exception,     // the actor's next task throws
  not_finite,    // its next micro-step meets a NaN
  delay,         // its next task begins `seconds` later
  device_error,  // its next task, and all after it, meet an error of the device that sticks
  hold,          // it stands still when it comes to `at`, for `seconds` at most
  release,       // it goes on where it is held, or will not be held
};
constexpr bool is_valid(FaultKind kind) {
  return kind <= FaultKind::release;
}

/// A place in an actor's work, before what it names begins.
struct HoldPoint {
  HoldPhase phase = HoldPhase::step;
  std::int32_t step = -1;   // of HoldPhase::step; -1 = any
  std::int32_t patch = -1;  // of HoldPhase::step; -1 = any, and a step of the whole picture

  /// Returns whether an actor that is to be held here is held at `there`.
  bool covers(const HoldPoint& there) const {
    return phase == there.phase && (step < 0 || step == there.step) &&
           (patch < 0 || patch == there.patch);
  }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(phase, step, patch);
  }
};

/// client → controller; what the actor must do itself is passed on to it. Answered by Done.
struct InjectFault {
  static constexpr Kind kKind = Kind::inject_fault;
  std::uint32_t actor = 0;
  FaultKind fault = FaultKind::kill;
  double seconds = 0;
  HoldPoint at = {};  // of hold

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, fault, seconds, at);
  }
};

/// actor → controller: it is held from now on, or goes on. Behind the ends of all tasks before.
struct HoldChanged {
  static constexpr Kind kKind = Kind::hold_changed;
  bool held = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(held);
  }
};

enum class DocumentKind : std::uint8_t {
  graph,     // a job's task graph and where each task is
  timeline,  // Chrome trace events of a job, or of all jobs that are remembered (job 0)
  failures,  // flight records of the last failures; of one job where `job` is not 0
  machine,   // speeds and links that jobs are planned for, as they were measured
  slices,    // tasks of all jobs that ended after the slice of number `after`, actor by actor
  metrics,   // the cluster's figures, as Prometheus' text
};
constexpr bool is_valid(DocumentKind kind) {
  return kind <= DocumentKind::metrics;
}

/// client → controller. Answered by Document.
struct GetDocument {
  static constexpr Kind kKind = Kind::get_document;
  DocumentKind kind = DocumentKind::graph;
  std::uint64_t job = 0;
  std::uint64_t after = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(kind, job, after);
  }
};

struct Document {
  static constexpr Kind kKind = Kind::document;
  BlobRef blob;  // JSON, or the metrics' text, at the controller

  template <class Archive>
  void serialize(Archive& ar) {
    ar(blob);
  }
};

/// client → controller: lines that an actor, or the controller, has said. Answered by LogLines.
struct GetLogs {
  static constexpr Kind kKind = Kind::get_logs;
  std::int64_t actor = -1;    // -1 = the controller
  std::uint64_t after = 0;    // lines up to this number are known already
  std::uint32_t lines = 100;  // the last ones of the rest, at most

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, after, lines);
  }
};

struct LogLines {
  static constexpr Kind kKind = Kind::log_lines;
  std::uint64_t last = 0;  // number of the last line said so far; the first ever is 1
  std::vector<std::string> lines;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(last, lines);
  }
};

/// controller → actor, second lane: what does your clock say? Answered by ClockReading.
struct ReadClock {
  static constexpr Kind kKind = Kind::read_clock;

  template <class Archive>
  void serialize(Archive&) {}
};

struct ClockReading {
  static constexpr Kind kKind = Kind::clock_reading;
  std::int64_t monotonic_ns = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(monotonic_ns);
  }
};

}  // namespace troupe::wire
