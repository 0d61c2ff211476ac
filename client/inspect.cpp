#include "troupe/inspect.h"

#include <algorithm>
#include <future>

#include "base/suggest.h"
#include "client/convert.h"
#include "client/link.h"
#include "client/own_cluster.h"
#include "transport/wire/done.h"
#include "transport/wire/inspect_messages.h"
#include "transport/wire/tensor_messages.h"

namespace troupe {
namespace {

wire::FaultKind to_wire(Fault fault) {
  return static_cast<wire::FaultKind>(fault);
}
static_assert(static_cast<int>(Fault::release) == static_cast<int>(wire::FaultKind::release));
static_assert(static_cast<int>(JobAction::until_not_finite) ==
              static_cast<int>(wire::JobAction::until_not_finite));

}  // namespace

struct Inspector::Impl {
  std::unique_ptr<client::Link> link;

  template <class Answer, class M>
  Result<Answer> ask(M message) {
    return link->ask<Answer>(std::move(message), kAnswerDeadline);
  }

  Result<std::string> fetch(const wire::BlobRef& blob) {
    auto promise = std::make_shared<std::promise<Result<std::string>>>();
    auto future = promise->get_future();
    link->post([this, blob, promise] {
      link->fetch(blob, [promise](control::BlobResult result) {
        if (!result) return promise->set_value(calls::to_error(result.failure));
        promise->set_value(std::string(result.bytes->begin(), result.bytes->end()));
      });
    });
    if (future.wait_for(kBlobDeadline) == std::future_status::ready) return future.get();
    return Error{ErrorCode::timeout, "[client] blob \"" + blob.name + "\" did not arrive in time"};
  }

  Result<std::string> document(wire::DocumentKind kind, std::uint64_t job,
                               std::uint64_t after = 0) {
    const auto document = ask<wire::Document>(wire::GetDocument{kind, job, after});
    if (!document) return document.error();
    return fetch(document.value().blob);
  }
};

Inspector::Inspector(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Inspector::Inspector(Inspector&&) noexcept = default;
Inspector& Inspector::operator=(Inspector&&) noexcept = default;
Inspector::~Inspector() = default;

Result<Inspector> Inspector::connect(const std::string& endpoint, std::chrono::milliseconds timeout,
                                     const std::string& keys, std::stop_token stop) {
  const auto place = client::found_place(endpoint, keys);
  if (!place) return place.error();
  auto impl = std::make_unique<Impl>();
  client::Link::Handlers handlers;
  handlers.on_progress = [](const wire::JobProgress&) {};
  handlers.on_finished = [](const wire::JobFinished&) {};
  handlers.on_lost = [](const Error&) {};
  Error error;
  impl->link = client::Link::open(place.value().endpoint, timeout, std::move(handlers), error,
                                  place.value().keys, stop);
  if (!impl->link) return error;
  return Inspector(std::move(impl));
}

const std::string& Inspector::job_series() const {
  return impl_->link->job_series();
}

bool Inspector::lost() const {
  return impl_->link->lost();
}

Result<MailboxInfo> Inspector::mailbox(std::uint32_t actor) {
  auto report = impl_->ask<wire::MailboxReport>(wire::GetMailbox{actor});
  if (!report) return report.error();
  MailboxInfo info{.doing = report.value().doing,
                   .doing_seconds = report.value().doing_seconds,
                   .total = report.value().total,
                   .handled = report.value().handled,
                   .entries = {}};
  for (const auto& row : report.value().entries)
    info.entries.push_back({row.what, row.job, row.step, row.patch, row.part});
  return info;
}

Result<TensorsInfo> Inspector::tensors(std::uint32_t actor, std::uint64_t job) {
  auto report = impl_->ask<wire::TensorReport>(wire::GetTensors{actor, job});
  if (!report) return report.error();
  TensorsInfo info{.at = report.value().at, .tensors = {}};
  for (auto& row : report.value().tensors) {
    info.tensors.push_back(
        {row.name, std::move(row.shape), row.dtype, row.mean, row.min, row.max, row.not_finite});
  }
  return info;
}

Result<TensorValues> Inspector::slice(std::uint32_t actor, std::uint64_t job,
                                      const std::string& name,
                                      const std::vector<SliceRange>& ranges) {
  wire::GetSlice message{.actor = actor, .job = job, .name = name, .ranges = {}};
  for (const auto& range : ranges)
    message.ranges.push_back({range.begin, range.end, range.whole, range.single});
  auto slice = impl_->ask<wire::TensorSlice>(std::move(message));
  if (!slice) return slice.error();
  auto& value = slice.value();
  return TensorValues{value.dtype, std::move(value.shape), std::move(value.values)};
}

Result<LatentsNow> Inspector::latents(std::uint64_t job) {
  const auto answer = impl_->ask<wire::JobLatents>(wire::GetLatents{job, false});
  if (!answer) return answer.error();
  const auto bytes = impl_->fetch(answer.value().blob);
  if (!bytes) return bytes.error();
  auto latents = client::latents_from(bytes.value(), answer.value().blob.shape);
  if (!latents)
    return Error{ErrorCode::protocol, "[client] the latents' bytes do not fit their shape"};
  return LatentsNow{answer.value().first_step, answer.value().last_step, std::move(*latents)};
}

Result<PictureNow> Inspector::picture(std::uint64_t job) {
  const auto answer = impl_->ask<wire::JobLatents>(wire::GetLatents{job, true});
  if (!answer) return answer.error();
  auto png = impl_->fetch(answer.value().blob);
  if (!png) return png.error();
  return PictureNow{answer.value().first_step, answer.value().last_step, std::move(png.value())};
}

Result<std::string> Inspector::control(std::uint64_t job, JobAction action, int step) {
  const auto done =
      impl_->ask<wire::Done>(wire::ControlJob{job, static_cast<wire::JobAction>(action), step});
  if (!done) return done.error();
  return done.value().note;
}

std::vector<std::string> hold_phases() {
  return choice_words<wire::HoldPhase>();
}

Result<std::string> Inspector::inject(std::uint32_t actor, Fault fault, double seconds,
                                      const HoldAt& at) {
  const auto phase = parse_choice<wire::HoldPhase>(at.phase);
  if (!phase) {
    return Error{ErrorCode::bad_request, "[client] phase " + not_one_of(at.phase, hold_phases())};
  }
  const auto done = impl_->ask<wire::Done>(
      wire::InjectFault{actor, to_wire(fault), seconds, {*phase, at.step, at.patch}});
  if (!done) return done.error();
  return done.value().note;
}

Result<std::string> Inspector::graph(std::uint64_t job) {
  return impl_->document(wire::DocumentKind::graph, job);
}

Result<std::string> Inspector::timeline(std::uint64_t job) {
  return impl_->document(wire::DocumentKind::timeline, job);
}

Result<std::string> Inspector::failures(std::uint64_t job) {
  return impl_->document(wire::DocumentKind::failures, job);
}

Result<std::string> Inspector::machine() {
  return impl_->document(wire::DocumentKind::machine, 0);
}

Result<std::string> Inspector::slices(std::uint64_t after) {
  return impl_->document(wire::DocumentKind::slices, 0, after);
}

Result<std::string> Inspector::metrics() {
  return impl_->document(wire::DocumentKind::metrics, 0);
}

Result<LogInfo> Inspector::logs(std::int64_t actor, std::uint64_t after, std::uint32_t lines) {
  auto answer = impl_->ask<wire::LogLines>(wire::GetLogs{actor, after, lines});
  if (!answer) return answer.error();
  return LogInfo{answer.value().last, std::move(answer.value().lines)};
}

}  // namespace troupe
