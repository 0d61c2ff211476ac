#include "transport/calls/exchange.h"

#include <algorithm>
#include <functional>

#include "base/format.h"

namespace troupe::calls {
namespace {

using Clock = std::chrono::steady_clock;

Death to_public(const wire::ActorDied& death) {
  return {death.id,        death.name,   death.class_name, death.cause,     death.signal,
          death.exit_code, death.method, death.log,        death.restarting};
}
}  // namespace

std::shared_ptr<Exchange> Exchange::make(ExchangeTools tools) {
  return std::shared_ptr<Exchange>(new Exchange(std::move(tools)));
}

Exchange::Exchange(ExchangeTools tools) : tools_(std::move(tools)) {
  timer_.emplace(io());
}
Exchange::~Exchange() = default;

bool Exchange::post(std::function<void()> action) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  tools_.loop->post([weak = weak(), action = std::move(action)] {
    const auto alive = weak.lock();
    if (!alive || alive->closed_) return;
    action();
  });
  return true;
}

void Exchange::close(const Error& why) {
  std::vector<Incoming> incoming;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = why;
    incoming.swap(incoming_);
  }
  for (auto& each : incoming)
    each.state->finish({.error = why});
  for (const auto& [id, line] : lines_)
    line->close(why);
  lines_.clear();
  for (const auto& [endpoint, link] : blob_links_)
    link->close();
  blob_links_.clear();
  timer_.reset();
}

CallConnection& Exchange::line(std::uint64_t actor) {
  auto& line = lines_[actor];
  if (!line) line = std::make_shared<CallConnection>(*this, actor);
  return *line;
}

std::shared_ptr<detail::CallState> Exchange::call(detail::CallRequest request) {
  auto state = std::make_shared<detail::CallState>(shared_from_this());
  std::unique_lock lock(mutex_);
  if (closed_) {
    lock.unlock();
    state->finish({.error = *closed_});
    return state;
  }
  incoming_.push_back({std::move(request), state});
  if (std::exchange(drain_posted_, true)) return state;
  lock.unlock();
  tools_.loop->dispatch([weak = weak()] {
    if (const auto alive = weak.lock()) alive->drain();
  });
  return state;
}

bool Exchange::wait(detail::CallState& state, Clock::time_point until) {
  // Who waits looks for the answer itself; a future of another exchange may end elsewhere.
  constexpr std::chrono::milliseconds kLookAgain{100};
  const auto done = [&state] { return state.done(); };
  while (!done() && Clock::now() < until) {
    if (tools_.loop->run_until(done, std::min(until, Clock::now() + kLookAgain))) continue;
    const control::SharedLoop::LoopPin bystander(tools_.loop);
    return state.wait_until(until);
  }
  return done();
}

void Exchange::drain() {
  std::vector<Incoming> incoming;
  {
    std::lock_guard lock(mutex_);
    drain_posted_ = false;
    if (closed_) return;
    incoming.swap(incoming_);
  }
  std::vector<CallConnection*> touched;
  for (auto& each : incoming) {
    CallConnection& to = line(each.request.actor);
    to.add(std::move(each.request), std::move(each.state));
    if (touched.empty() || touched.back() != &to) touched.push_back(&to);
  }
  for (CallConnection* each : touched)
    each->pump();
}

void Exchange::pump_later(std::uint64_t actor) {
  post([this, actor] {
    if (const auto found = lines_.find(actor); found != lines_.end()) found->second->pump();
  });
}

void Exchange::expect(Clock::time_point until, std::uint64_t actor, std::uint64_t call) {
  due_.push_back({until, actor, call});
  std::ranges::push_heap(due_, std::greater<>());
  if (due_.size() > tidied_at_) forget_answered();
  arm();
}

/// Calls are answered long before a deadline that is far away.
void Exchange::forget_answered() {
  std::erase_if(due_, [this](const Due& due) {
    const auto found = lines_.find(due.actor);
    return found == lines_.end() || !found->second->awaits(due.call);
  });
  std::ranges::make_heap(due_, std::greater<>());
  tidied_at_ = 2 * due_.size() + 1024;
}

void Exchange::arm() {
  if (due_.empty() || due_.front().until >= armed_for_ || !timer_) return;
  armed_for_ = due_.front().until;
  timer_->expires_at(armed_for_);
  timer_->async_wait([weak = weak()](const boost::system::error_code& error) {
    const auto alive = weak.lock();
    if (error || !alive || alive->closed_) return;
    alive->armed_for_ = Clock::time_point::max();
    const auto now = Clock::now();
    while (!alive->due_.empty() && alive->due_.front().until <= now) {
      const Due due = alive->due_.front();
      std::ranges::pop_heap(alive->due_, std::greater<>());
      alive->due_.pop_back();
      if (const auto found = alive->lines_.find(due.actor); found != alive->lines_.end())
        found->second->expire(due.call);
    }
    alive->arm();
  });
}

bool Exchange::on_message(const wire::Header& header, std::span<const std::byte> payload) {
  if (header.kind != wire::Kind::actor_died) return false;
  const auto death = wire::decode<wire::ActorDied>(payload);
  if (const auto found = lines_.find(death.id); found != lines_.end()) {
    const auto line = found->second;
    line->died(death);
  }
  if (const auto found = watchers_.find(death.id); found != watchers_.end()) {
    const auto told = found->second;
    if (!death.restarting) watchers_.erase(found);
    for (const auto& watcher : told)
      watcher.told(to_public(death));
  }
  return true;
}

control::ConnectionOptions Exchange::connection_options(const std::string& endpoint,
                                                        const std::string& ticket,
                                                        const std::string& keys) const {
  control::ConnectionOptions options;
  options.endpoint = endpoint;
  options.hello.role = PeerRole::caller;
  options.hello.name = tools_.name;
  options.hello.attributes["ticket"] = ticket;
  if (!keys.empty()) options.keys = control::client_keys_from(keys, "the controller");
  options.socket = tools_.socket;
  return options;
}

control::BlobConnection& Exchange::open_blob_link(const BlobDoor& door, const LinkProof& proof) {
  const auto key = door.endpoint + " " + proof.secret;
  if (const auto open = blob_links_.find(key); open != blob_links_.end()) return *open->second;
  auto options = connection_options(door.endpoint, door.ticket, door.keys);
  options.incarnation = proof.incarnation;
  options.hello.secret = proof.secret;
  const auto link =
      std::make_shared<control::BlobConnection>(io(), std::move(options), tools_.blobs);
  blob_links_[key] = link;
  const auto again = [this, key] { post([this, key] { blob_links_.erase(key); }); };
  link->on_lost([again](const control::Loss&) { again(); });
  link->start({}, [again](const wire::Failure&) { again(); });
  return *link;
}

void Exchange::link_stands(const std::string& blob_endpoint, LinkProof link) {
  standing_[blob_endpoint] = std::move(link);
}

void Exchange::link_ended(const std::string& blob_endpoint) {
  const auto known = standing_.find(blob_endpoint);
  if (known == standing_.end()) return;
  const auto link = blob_links_.extract(blob_endpoint + " " + known->second.secret);
  standing_.erase(known);
  if (!link.empty()) post([gone = link.mapped()] { gone->close(); });
}

void Exchange::fetch_blob(const BlobDoor& door, control::BlobId blob, std::uint64_t bytes,
                          control::Milliseconds deadline, control::BlobHandler handler) {
  const auto known = standing_.find(door.endpoint);
  try {
    open_blob_link(door, known == standing_.end() ? LinkProof{} : known->second)
        .fetch(blob, bytes, deadline, std::move(handler));
  } catch (const std::exception& error) {
    handler({nullptr, {wire::FailureCode::lost, error.what()}});
  }
}

Result<std::shared_ptr<const std::string>> Exchange::fetch(const Holder& holder,
                                                           control::BlobId blob,
                                                           std::uint64_t bytes,
                                                           Milliseconds deadline) {
  if (on_own_thread())
    return Error{ErrorCode::bad_request, "[future] wait would wait for itself inside a callback"};
  auto promise = std::make_shared<std::promise<control::BlobResult>>();
  auto future = promise->get_future();
  const bool posted = post([this, holder, blob, bytes, deadline, promise] {
    fetch_blob(holder.door, blob, bytes, deadline,
               [promise](control::BlobResult result) { promise->set_value(std::move(result)); });
  });
  if (!posted) return *closed_;
  if (future.wait_for(deadline + kThreadMargin) != std::future_status::ready)
    return Error{ErrorCode::timeout, "[future] the result was not here in time"};
  auto result = future.get();
  if (result) return result.bytes;
  Error error = to_error(result.failure);
  error.what =
      fmt::format("[future] the result of actor {} did not come: {}", holder.actor, error.what);
  return error;
}

void Exchange::release(const Holder& holder, control::BlobId blob) {
  post([this, actor = holder.actor, incarnation = holder.incarnation, blob] {
    if (const auto found = lines_.find(actor); found != lines_.end())
      found->second->release(incarnation, blob);
  });
}

}  // namespace troupe::calls
