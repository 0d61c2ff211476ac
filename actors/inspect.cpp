#include "actors/inspect.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <stdexcept>
#include <thread>

#include "actors/device.h"
#include "transport/wire/done.h"

namespace troupe::actors {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShownMessages = 100;
/// Time that a question waits for the work loop; well within what a client waits.
constexpr std::chrono::seconds kPatience{5};

wire::MailboxRow row_of(const Message& message) {
  wire::MailboxRow row;
  if (const auto* entry = std::get_if<TaskEntry>(&message.content)) {
    const auto& command = entry->command;
    static constexpr const char* kKinds[] = {"text", "micro-step", "decode"};
    row.what = command.receive ? "receive from stage " + std::to_string(command.stage)
                               : kKinds[static_cast<int>(command.kind)];
    row.job = command.job;
    if (!command.receive && command.kind != wire::TaskKind::micro_step) return row;
    row.step = command.step;
    row.patch = command.patch;
    row.part = command.part;
    return row;
  }
  std::visit(
      [&](const auto& content) {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, wire::LoadStage>) row.what = "load";
        if constexpr (std::is_same_v<Content, wire::ConnectGroups>) row.what = "connect";
        if constexpr (std::is_same_v<Content, wire::BeginJob>)
          row = {.what = "begin", .job = content.job};
        if constexpr (std::is_same_v<Content, wire::EndJob>)
          row = {.what = "end", .job = content.job};
        if constexpr (std::is_same_v<Content, wire::Unload>)
          row.what = content.encoders_alone ? "unload encoders" : "unload";
        if constexpr (std::is_same_v<Content, wire::AbortEpoch>) row.what = "end of epoch";
      },
      message.content);
  if (row.what.empty()) row.what = "message";
  return row;
}

}  // namespace

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

std::string task_text(const wire::Command& command) {
  if (command.kind == wire::TaskKind::encode_text) return "text";
  if (command.kind == wire::TaskKind::decode)
    return command.part > 0 ? "decode part " + std::to_string(command.part) : "decode";
  std::string text = "step " + std::to_string(command.step);
  if (command.patch >= 0) text += " patch " + std::to_string(command.patch);
  if (command.part > 0) text += " part " + std::to_string(command.part);
  return text;
}

std::string describe(const Message& message,
                     const std::function<std::string(std::uint64_t)>& name_of) {
  if (const auto* entry = std::get_if<TaskEntry>(&message.content))
    return name_of(entry->command.job) + " " + task_text(entry->command);
  if (std::holds_alternative<wire::LoadStage>(message.content)) return "loading";
  if (std::holds_alternative<wire::ConnectGroups>(message.content)) return "connecting";
  if (const auto* begin = std::get_if<wire::BeginJob>(&message.content))
    return "beginning " + begin->name;
  if (const auto* end = std::get_if<wire::EndJob>(&message.content))
    return "ending " + name_of(end->job);
  if (std::holds_alternative<std::shared_ptr<Inspection>>(message.content))
    return "being looked at";
  return "cleaning up";
}

std::optional<wire::HoldPoint> hold_point(const Message& message) {
  using wire::HoldPhase;
  if (const auto* entry = std::get_if<TaskEntry>(&message.content)) {
    const auto& command = entry->command;
    if (command.receive) return std::nullopt;
    if (command.kind == wire::TaskKind::encode_text) return wire::HoldPoint{HoldPhase::text};
    if (command.kind == wire::TaskKind::decode) return wire::HoldPoint{HoldPhase::decode};
    return wire::HoldPoint{HoldPhase::step, command.step, command.patch};
  }
  if (std::holds_alternative<wire::LoadStage>(message.content))
    return wire::HoldPoint{HoldPhase::loading};
  if (std::holds_alternative<wire::ConnectGroups>(message.content))
    return wire::HoldPoint{HoldPhase::connecting};
  if (std::holds_alternative<wire::BeginJob>(message.content))
    return wire::HoldPoint{HoldPhase::beginning};
  if (std::holds_alternative<wire::EndJob>(message.content))
    return wire::HoldPoint{HoldPhase::ending};
  return std::nullopt;
}

void WorkView::begin(std::string what) {
  std::lock_guard lock(mutex_);
  doing_ = std::move(what);
  since_ = Clock::now();
}

void WorkView::end() {
  handled_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  doing_.clear();
}

std::pair<std::string, double> WorkView::doing() const {
  std::lock_guard lock(mutex_);
  if (doing_.empty()) return {};
  return {held_ ? doing_ + " (held)" : doing_,
          std::chrono::duration<double>(Clock::now() - since_).count()};
}

void WorkView::inject(const wire::InjectFault& fault) {
  std::lock_guard lock(mutex_);
  if (fault.fault == wire::FaultKind::exception) throws_ = true;
  if (fault.fault == wire::FaultKind::not_finite) poisons_ = true;
  if (fault.fault == wire::FaultKind::device_error) device_lost_ = true;
  if (fault.fault == wire::FaultKind::delay)
    delay_ = std::chrono::duration<double>(std::clamp(fault.seconds, 0.0, 3600.0));
  if (fault.fault == wire::FaultKind::hold) hold_ = fault;
  if (fault.fault != wire::FaultKind::release) return;
  // A held work loop may have been given its next hold meanwhile.
  if (!std::exchange(held_, false)) hold_.reset();
  released_.notify_all();
}

void WorkView::meet_hold(const wire::HoldPoint& here, const std::function<bool()>& over,
                         const std::function<void(bool held)>& tell) {
  std::unique_lock lock(mutex_);
  if (!hold_ || !hold_->at.covers(here)) return;
  const std::chrono::duration<double> most(std::clamp(hold_->seconds, 0.0, 3600.0));
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(most);
  hold_.reset();
  held_ = true;
  lock.unlock();
  tell(true);
  lock.lock();
  while (held_ && Clock::now() < until) {
    lock.unlock();
    const bool left = over();
    lock.lock();
    if (left) break;
    released_.wait_until(lock, std::min(until, Clock::now() + std::chrono::milliseconds(50)),
                         [this] { return !held_; });
  }
  held_ = false;
  lock.unlock();
  tell(false);
}

bool WorkView::meet_faults(bool is_micro_step, const std::function<void()>& tick) {
  std::chrono::duration<double> delay{0};
  bool throws = false;
  bool poisons = false;
  bool device_lost = false;
  {
    std::lock_guard lock(mutex_);
    delay = std::exchange(delay_, std::chrono::duration<double>{0});
    throws = std::exchange(throws_, false);
    if (is_micro_step) poisons = std::exchange(poisons_, false);
    device_lost = device_lost_;
  }
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(delay);
  while (Clock::now() < until) {
    tick();
    const auto left = until - Clock::now();
    std::this_thread::sleep_for(std::min<Clock::duration>(left, std::chrono::milliseconds(50)));
  }
  if (throws) throw std::runtime_error("[actor] this fault was injected");
  if (device_lost) {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kIllegalAddress,
                                "an illegal memory access that was injected");
  }
  return poisons;
}

bool InspectLane::on_message(const wire::Header& header, std::span<const std::byte> payload) {
  switch (header.kind) {
    case wire::Kind::get_mailbox:
      connection_.reply(header, mailbox_report());
      return true;
    case wire::Kind::read_clock:
      connection_.reply(header, wire::ClockReading{monotonic_ns()});
      return true;
    case wire::Kind::inject_fault:
      view_.inject(wire::decode<wire::InjectFault>(payload));
      connection_.reply(header, wire::Done{});
      return true;
    case wire::Kind::get_tensors:
      hand_on(header, wire::decode<wire::GetTensors>(payload));
      return true;
    case wire::Kind::get_slice:
      hand_on(header, wire::decode<wire::GetSlice>(payload));
      return true;
    case wire::Kind::get_latent_rows:
      hand_on(header, wire::decode<wire::GetLatentRows>(payload));
      return true;
    case wire::Kind::render_latents:
      hand_on(header, wire::decode<wire::RenderLatents>(payload));
      return true;
    default:
      return false;
  }
}

wire::MailboxReport InspectLane::mailbox_report() const {
  wire::MailboxReport report;
  std::tie(report.doing, report.doing_seconds) = view_.doing();
  report.handled = view_.handled();
  report.total = mailbox_.look(
      kShownMessages, [&](const Message& message) { report.entries.push_back(row_of(message)); });
  return report;
}

void InspectLane::hand_on(const wire::Header& header, Inspection::Question question) {
  auto inspection = std::make_shared<Inspection>();
  inspection->header = header;
  inspection->question = std::move(question);
  if (!mailbox_.put_inspection(inspection, rehearses_)) {
    connection_.reply(header,
                      wire::Failure{wire::FailureCode::overloaded,
                                    "[actor] too many look at it already: ask again later"});
    return;
  }
  auto timer = std::make_shared<boost::asio::steady_timer>(io_, kPatience);
  timer->async_wait([this, timer, inspection](const boost::system::error_code& error) {
    if (error || !inspection->claim()) return;
    const auto [doing, seconds] = view_.doing();
    const std::string inside = doing.empty() ? "busy"
                                             : "inside " + doing + " for " +
                                                   std::to_string(static_cast<int>(seconds)) + " s";
    connection_.reply(
        inspection->header,
        wire::Failure{wire::FailureCode::timeout,
                      "[actor] its work loop is " + inside +
                          ": tensors are looked at between two tasks, ask again later"});
  });
}

}  // namespace troupe::actors
