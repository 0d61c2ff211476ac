#include "troupe/client.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "base/format.h"
#include "client/conversation.h"
#include "client/convert.h"
#include "client/link.h"
#include "client/own_cluster.h"
#include "transport/wire/host_messages.h"
#include "transport/wire/request_limits.h"
#include "transport/wire/request_rules.h"
#include "troupe/actor.h"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLongestWait = std::chrono::hours(24 * 365);
/// Time that a controller that is gone has to come back, and how often the client looks for it.
constexpr std::chrono::seconds kComeBack{60};
constexpr milliseconds kOpenDeadline{2000};
constexpr milliseconds kTryAgain{50};

Error called_from_callback(const std::string& call) {
  return {ErrorCode::bad_request,
          "[client] " + call + " would wait for itself inside a progress callback"};
}

}  // namespace

/// A conversation with the controller, and where there is a journal, the next one with the
/// controller that comes after it.
struct Client::Impl {
  using Talk = std::shared_ptr<client::Conversation>;

  std::string endpoint;
  std::string keys;
  std::stop_token stop;
  std::mutex mutex;
  std::map<std::uint64_t, OnProgress> watching;  // until the job's end was told
  Talk current;
  std::vector<Talk> past;  // callbacks of theirs may still be running
  std::optional<std::chrono::steady_clock::time_point> give_up_at;  // while there is none
  std::optional<Error> gone;                                        // it will not come back
  std::timed_mutex reviving;

  Talk talk() {
    std::lock_guard lock(mutex);
    return current;
  }
  client::Link& link() { return talk()->link(); }
  bool can_revive(const Talk& lost, const Error& error) {
    // What could not be fetched may come over the next connection.
    return (error.code == ErrorCode::lost || error.code == ErrorCode::not_fetched) &&
           !lost->link().journal().empty();
  }
  void watched_by(std::uint64_t job, const OnProgress& on_progress) {
    std::lock_guard lock(mutex);
    if (on_progress) watching[job] = on_progress;
  }

  /// A submission as it goes over the wire, with the bytes that it brings along.
  struct Ready {
    wire::SubmitJob message;
    std::vector<client::Input> inputs;

    /// The message for one link, which holds the bytes from now on.
    std::pair<wire::SubmitJob, std::vector<control::BlobId>> held_at(client::Link& link) const;
    milliseconds deadline() const {
      return inputs.empty() ? kAnswerDeadline : kAnswerDeadline + wire::kUploadDeadline;
    }
  };
  static Result<Ready> ready(const Submission& submission);

  void say_lost(std::uint64_t job, const Talk& talk, const Error& error);
  std::optional<Error> revive(const Talk& lost, const Error& error,
                              std::chrono::steady_clock::time_point until);
};

Result<Client::Impl::Ready> Client::Impl::ready(const Submission& submission) {
  if (const auto error = client::check_init_latents(submission.request)) return *error;
  if (const auto error = client::check_pictures(submission.request)) return *error;
  if (const auto error = client::check_prompt_embeds(submission.request)) return *error;
  auto spec = client::to_wire(submission);
  if (!spec) return spec.error();
  try {
    wire::check_submission(spec.value());
  } catch (const wire::BadField& error) {
    return Error{ErrorCode::bad_request, error.what(), to_string(error.field)};
  }
  const auto key = submission.key != 0 ? submission.key : control::random_incarnation();
  return Ready{{std::move(spec.value()), submission.detached, key},
               client::inputs_of(submission.request)};
}

std::pair<wire::SubmitJob, std::vector<control::BlobId>> Client::Impl::Ready::held_at(
    client::Link& link) const {
  std::pair<wire::SubmitJob, std::vector<control::BlobId>> held{message, {}};
  auto& request = held.first.job.request;
  for (const auto& input : inputs) {
    const auto fields = input.fields(request);
    fields.size = input.bytes.size();
    fields.blob = held.second.emplace_back(link.hold(input.bytes));
  }
  return held;
}

void Client::Impl::say_lost(std::uint64_t job, const Talk& talk, const Error& error) {
  OnProgress on_progress;
  {
    std::lock_guard lock(mutex);
    if (give_up_at) return;
    if (const auto found = watching.find(job); found != watching.end()) on_progress = found->second;
  }
  if (!on_progress) return;
  Progress progress;
  progress.job = job;
  progress.phase = JobPhase::unreachable;
  progress.warnings = {
      error.what +
      (talk->link().replaced()
           ? "; reconnecting to the controller that was started again"
           : fmt::format("; waiting {} s for the controller to answer or to be started again",
                         kComeBack.count()))};
  on_progress(progress);
}

/// Waits for a controller. Nothing when there is a controller again that knows the jobs of the lost
/// one; else code timeout (not until then), or why there will be none.
std::optional<Error> Client::Impl::revive(const Talk& lost, const Error& error,
                                          std::chrono::steady_clock::time_point until) {
  const Error later{ErrorCode::timeout, error.what};
  std::unique_lock one(reviving, std::defer_lock);
  if (!one.try_lock_until(std::max(until, Clock::now() + kOpenDeadline))) return later;
  {
    std::lock_guard lock(mutex);
    if (current != lost) return std::nullopt;
    if (gone) return gone;
    if (!give_up_at) give_up_at = Clock::now() + kComeBack;
  }
  for (;;) {
    Error why;
    auto next = client::Conversation::open(endpoint, kOpenDeadline, keys, why, stop);
    const auto now = Clock::now();
    std::lock_guard lock(mutex);
    if (next && next->link().journal() == lost->link().journal()) {
      past.push_back(std::exchange(current, std::move(next)));
      give_up_at.reset();
      return std::nullopt;
    }
    if (stop.stop_requested())
      return Error{ErrorCode::interrupted, error.what + "; interrupted while looking for it again"};
    if (next) {
      gone = Error{ErrorCode::lost,
                   error.what + "; the cluster that is there now has another journal"};
    } else if (why.code != ErrorCode::unreachable && why.code != ErrorCode::timeout) {
      gone = Error{ErrorCode::lost,
                   error.what + "; the controller cannot be reached again: " + why.what};
    } else if (now >= *give_up_at) {
      gone =
          Error{ErrorCode::lost, fmt::format("{}; the controller was not started again within {} s",
                                             error.what, kComeBack.count())};
    }
    if (gone) return gone;
    if (now >= until) return later;
    std::this_thread::sleep_for(kTryAgain);
  }
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Result<Client> Client::connect(const std::string& endpoint, milliseconds timeout,
                               const std::string& keys, std::stop_token stop) {
  const auto place = client::found_place(endpoint, keys);
  if (!place) return place.error();
  Error error;
  auto impl = std::make_unique<Impl>();
  impl->endpoint = place.value().endpoint;
  impl->keys = place.value().keys;
  impl->stop = std::move(stop);
  impl->current =
      client::Conversation::open(impl->endpoint, std::clamp(timeout, milliseconds(1), kLongestWait),
                                 impl->keys, error, impl->stop);
  if (!impl->current) return error;
  return Client(std::move(impl));
}

Result<std::uint64_t> Client::submit(const Submission& submission, OnProgress on_progress) {
  if (impl_->link().on_thread()) return called_from_callback("submit");
  auto ready = Impl::ready(submission);
  if (!ready) return ready.error();
  const Impl::Ready& job = ready.value();
  for (;;) {
    const auto talk = impl_->talk();
    const auto [message, uploads] = job.held_at(talk->link());
    const std::function<void(const wire::JobAccepted&)> follow =
        [talk = talk.get(), on_progress](const wire::JobAccepted& accepted) {
          talk->accepted(accepted, on_progress);
        };
    auto accepted = talk->link().ask<wire::JobAccepted>(message, job.deadline(), follow);
    // The controller has fetched them before it accepts the job.
    for (const auto upload : uploads)
      talk->link().drop(upload);
    if (accepted) {
      impl_->watched_by(accepted.value().job, on_progress);
      return accepted.value().job;
    }
    // Nobody knows whether it was accepted; under the same key it is not accepted twice.
    if (!impl_->can_revive(talk, accepted.error())) return accepted.error();
    if (const auto error = impl_->revive(talk, accepted.error(), Clock::now() + kComeBack))
      return *error;
  }
}

void Client::submit(const Submission& submission, OnProgress on_progress, OnSubmitted then) {
  const auto talk = impl_->talk();
  auto ready = Impl::ready(submission);
  if (!ready)
    return talk->link().post([then = std::move(then), why = ready.error()] { then(why); });
  auto [message, uploads] = ready.value().held_at(talk->link());
  talk->link().post([impl = impl_.get(), talk = talk.get(), on_progress = std::move(on_progress),
                     then = std::move(then), message = std::move(message),
                     uploads = std::move(uploads), deadline = ready.value().deadline()] {
    talk->link().request<wire::JobAccepted>(
        message, deadline,
        [impl, talk, on_progress, then, uploads](Result<wire::JobAccepted> accepted) {
          for (const auto upload : uploads)
            talk->link().drop(upload);
          if (!accepted) return then(accepted.error());
          talk->accepted(accepted.value(), on_progress);
          impl->watched_by(accepted.value().job, on_progress);
          then(accepted.value().job);
        });
  });
}

std::optional<Error> Client::check(const Submission& submission) {
  if (impl_->link().on_thread()) return called_from_callback("check");
  auto ready = Impl::ready(submission);
  if (!ready) return ready.error();
  const auto talk = impl_->talk();
  auto [message, uploads] = ready.value().held_at(talk->link());
  message.only_check = true;
  const auto accepted = talk->link().ask<wire::JobAccepted>(message, kAnswerDeadline);
  for (const auto upload : uploads)
    talk->link().drop(upload);
  return accepted ? std::nullopt : std::optional(accepted.error());
}

Result<JobResult> Client::wait(std::uint64_t job, milliseconds timeout, OnProgress on_progress) {
  if (impl_->link().on_thread()) return called_from_callback("wait");
  timeout = std::clamp(timeout, milliseconds(0), kLongestWait);
  const auto until = Clock::now() + timeout;
  {
    std::lock_guard lock(impl_->mutex);
    auto& watching = impl_->watching[job];
    if (on_progress) watching = std::move(on_progress);
    on_progress = watching;
  }
  for (;;) {
    const auto talk = impl_->talk();
    auto result = talk->wait(job, timeout, until, on_progress);
    if (!result && impl_->can_revive(talk, result.error())) {
      impl_->say_lost(job, talk, result.error());
      auto failed = impl_->revive(talk, result.error(), until);
      if (!failed) continue;
      result = *failed;
    }
    if (result || result.error().code != ErrorCode::timeout) {
      std::lock_guard lock(impl_->mutex);
      impl_->watching.erase(job);
    }
    return result;
  }
}

void Client::watch(std::uint64_t job, OnProgress on_progress, OnEnd on_end) {
  impl_->talk()->watch(
      job, std::move(on_progress),
      [impl = impl_.get(), job, on_end = std::move(on_end)](const Result<JobResult>& result) {
        {
          std::lock_guard lock(impl->mutex);
          impl->watching.erase(job);
        }
        on_end(result);
      });
}

Result<std::string> Client::cancel(std::uint64_t job) {
  if (impl_->link().on_thread()) {
    impl_->link().request<wire::Done>(wire::CancelJob{job}, kAnswerDeadline,
                                      [](const Result<wire::Done>&) {});
    return std::string(fmt::format("asked to cancel job {}", job));
  }
  auto done = impl_->link().ask<wire::Done>(wire::CancelJob{job}, kAnswerDeadline);
  if (!done) return done.error();
  return done.value().note;
}

Result<std::string> Client::drain(const std::vector<std::string>& places, bool now) {
  if (impl_->link().on_thread()) return called_from_callback("drain");
  auto done = impl_->link().ask<wire::Done>(wire::DrainPlaces{places, now}, kAnswerDeadline);
  if (!done) return done.error();
  return done.value().note;
}

Result<std::vector<JobInfo>> Client::jobs() {
  auto page = jobs(JobQuery{});
  if (!page) return page.error();
  return std::move(page.value().jobs);
}

Result<JobPage> Client::jobs(const JobQuery& query) {
  if (impl_->link().on_thread()) return called_from_callback("jobs");
  const auto number = [](std::size_t value) {
    return static_cast<std::uint32_t>(std::min<std::size_t>(value, ~0u));
  };
  wire::JobList found;
  for (std::size_t skip = query.skip;;) {
    const auto most = query.most == 0 ? 0 : query.most - found.jobs.size();
    auto list = impl_->link().ask<wire::JobList>(
        wire::ListJobs{query.job, number(skip), number(most)}, kAnswerDeadline);
    if (!list) return list.error();
    found.all = list.value().all;
    auto& rows = list.value().jobs;
    skip += rows.size();
    std::ranges::move(rows, std::back_inserter(found.jobs));
    if (rows.empty() || skip >= found.all) break;
    if (query.most != 0 && found.jobs.size() >= query.most) break;
  }
  // Between two requests one may have begun, and is on both pages.
  std::ranges::stable_sort(found.jobs, {}, &wire::JobRow::id);
  const auto same_id = [](const auto& a, const auto& b) { return a.id == b.id; };
  found.jobs.erase(std::unique(found.jobs.begin(), found.jobs.end(), same_id), found.jobs.end());
  const std::size_t all = std::max<std::size_t>(found.all, found.jobs.size());
  return JobPage{client::to_public(std::move(found)), all};
}

Result<ClusterInfo> Client::status() {
  if (impl_->link().on_thread()) return called_from_callback("status");
  auto status = impl_->link().ask<wire::ClusterStatus>(wire::GetStatus{}, kAnswerDeadline);
  if (!status) return status.error();
  auto& actors = status.value().actors;
  while (!actors.empty() && actors.size() < status.value().actors_all) {
    auto next = impl_->link().ask<wire::ClusterStatus>(
        wire::GetStatus{static_cast<std::uint32_t>(actors.size())}, kAnswerDeadline);
    if (!next) return next.error();
    if (next.value().actors.empty()) break;
    std::ranges::move(next.value().actors, std::back_inserter(actors));
  }
  return client::to_public(std::move(status.value()));
}

Actors Client::actors() {
  return Actors(impl_->link().exchange());
}

Result<std::string> Client::stop_cluster() {
  if (impl_->link().on_thread()) return called_from_callback("stop_cluster");
  auto done = impl_->link().ask<wire::Done>(wire::StopCluster{}, kAnswerDeadline);
  if (!done) return done.error();
  return done.value().note;
}

}  // namespace troupe
