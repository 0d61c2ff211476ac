#include "base/format.h"
#include "transport/calls/call_connection.h"
#include "transport/calls/exchange.h"

// How calls wait, become messages and are sent.
namespace troupe::calls {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kInline = 64u << 10;       // bytes; more travels as a blob
constexpr std::size_t kBatchBytes = 256u << 10;  // of one message
constexpr std::size_t kWindowCalls = 8192;       // sent and not answered
constexpr std::size_t kWindowBytes = 16u << 20;
constexpr std::size_t kMaxWaiting = 1u << 20;  // calls
constexpr std::size_t kMaxWaitingBytes = 1u << 30;

std::size_t size_of(const wire::ActorCall& call) {
  return call.arguments.size() + call.method.size() + 64 * (1 + call.parts.size());
}

}  // namespace

void CallConnection::add(detail::CallRequest request, std::shared_ptr<detail::CallState> state) {
  if (waiting_.size() >= kMaxWaiting || waiting_bytes_ > kMaxWaitingBytes) {
    state->finish({.error = {ErrorCode::overloaded, fmt::format("{}: {} calls wait for it already",
                                                                name(), waiting_.size())}});
    return;
  }
  Waiting waiting;
  waiting.id = ++last_call_;
  waiting.until = Clock::now() + request.deadline;
  waiting_bytes_ += request.arguments.size();
  waiting.request = std::move(request);
  waiting.state = std::move(state);
  waiting_.push_back(std::move(waiting));
  exchange_.expect(waiting_.back().until, actor_, waiting_.back().id);
}

void CallConnection::pump() {
  if (closed_ || (waiting_.empty() && to_release_.empty())) return;
  if (!address_) return resolve();
  if (!connection_) return connect();
  if (!up_) return;
  if (!to_release_.empty()) {
    connection_->send(wire::ReleaseValues{std::exchange(to_release_, {})});
  }
  wire::ActorCalls batch;
  std::size_t bytes = 0;
  const auto send = [&] {
    if (!batch.calls.empty() && connection_) connection_->send(batch);
    batch.calls.clear();
    bytes = 0;
  };
  while (!waiting_.empty() && sent_.size() < kWindowCalls && sent_bytes_ < kWindowBytes) {
    Waiting& waiting = waiting_.front();
    if (!waiting.state->done()) {
      if (!ready(waiting)) break;
      Sent sent;
      if (auto call = make_call(waiting, sent)) {
        sent.bytes = size_of(*call);
        sent_bytes_ += sent.bytes;
        if (bytes + sent.bytes > kBatchBytes) send();
        bytes += sent.bytes;
        sent_.emplace(call->id, std::move(sent));
        batch.calls.push_back(std::move(*call));
      }
    }
    waiting_bytes_ -= std::min(waiting_bytes_, waiting.request.arguments.size());
    waiting_.pop_front();
  }
  send();
}

bool CallConnection::ready(Waiting& waiting) {
  for (const auto& hole : waiting.request.holes) {
    if (!hole.future || hole.future->done()) continue;
    if (!std::exchange(waiting.watched, true)) {
      const std::weak_ptr<Exchange> exchange = exchange_.weak();
      for (const auto& each : waiting.request.holes) {
        if (each.future)
          each.future->when_done([exchange, actor = actor_] {
            if (const auto alive = exchange.lock()) alive->pump_later(actor);
          });
      }
    }
    return false;
  }
  return true;
}

void CallConnection::add_segment(std::string segment, wire::ActorCall& call, Sent& sent) {
  if (call.arguments.size() + segment.size() <= kInline) {
    call.arguments += segment;
    return;
  }
  const auto bytes = segment.size();
  const auto blob = exchange_.blobs().add(std::move(segment));
  sent.own.push_back(blob);
  exchange_.open_blob_link({address_->blob_endpoint, address_->ticket, address_->keys},
                           {connection_->incarnation(), connection_->secret()});
  call.parts.push_back(
      {static_cast<std::uint32_t>(call.arguments.size()), "", "", "", blob, bytes});
}

std::optional<wire::ActorCall> CallConnection::make_call(Waiting& waiting, Sent& sent) {
  auto& request = waiting.request;
  wire::ActorCall call;
  call.id = waiting.id;
  call.types = request.types;
  call.text = request.text;
  const auto left =
      std::chrono::duration_cast<control::Milliseconds>(waiting.until - Clock::now()).count();
  call.deadline_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 1, 0xffffffff));
  if (request.holes.empty()) {
    add_segment(std::move(request.arguments), call, sent);
  } else {
    std::size_t at = 0;
    std::string segment;
    for (std::size_t i = 0; i < request.holes.size(); ++i) {
      const auto& hole = request.holes[i];
      const auto outcome = hole.future
                               ? hole.future->outcome()
                               : detail::Outcome{.error = {ErrorCode::bad_request, "is empty"}};
      if (!outcome.ok()) {
        waiting.state->finish(
            {.error = {outcome.error.code, name() + "." + request.method +
                                               ": the future given to it: " + outcome.error.what}});
        forget(sent);
        return std::nullopt;
      }
      segment.append(request.arguments, at, hole.at - at);
      at = hole.at;
      if (outcome.bytes) {
        segment += *outcome.bytes;
        continue;
      }
      add_segment(std::exchange(segment, {}), call, sent);
      const auto& held = static_cast<const HeldValue&>(*outcome.remote);
      call.parts.push_back({static_cast<std::uint32_t>(call.arguments.size()),
                            held.holder().door.endpoint, held.holder().door.ticket,
                            held.holder().door.keys, held.blob(), held.bytes()});
      sent.borrowed.push_back(outcome.remote);
    }
    segment.append(request.arguments, at);
    add_segment(std::move(segment), call, sent);
  }
  sent.method = request.method;
  sent.row = request.row;
  sent.state = std::move(waiting.state);
  waiting.state = sent.state;
  call.method = std::move(request.method);
  return call;
}

}  // namespace troupe::calls
