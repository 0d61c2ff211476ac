#include "transport/calls/exchange.h"

#include <boost/asio/post.hpp>

#include "transport/wire/done.h"

namespace troupe::calls {
namespace {

using Clock = std::chrono::steady_clock;

constexpr control::Milliseconds kAnswerDeadline{30'000};
constexpr control::Milliseconds kThreadMargin{2'000};

wire::Placement placement_of(const std::string& text, bool& known) {
  known = true;
  if (text == "pack") return wire::Placement::pack;
  if (text == "spread") return wire::Placement::spread;
  if (text == "together") return wire::Placement::together;
  known = false;
  return wire::Placement::pack;
}

Death to_public(const wire::ActorDied& death) {
  return {death.id,        death.name,   death.class_name, death.cause,     death.signal,
          death.exit_code, death.method, death.log,        death.restarting};
}

}  // namespace

std::shared_ptr<Exchange> Exchange::make(ExchangeTools tools) {
  return std::shared_ptr<Exchange>(new Exchange(std::move(tools)));
}

Exchange::Exchange(ExchangeTools tools)
    : tools_(std::move(tools)), thread_(std::this_thread::get_id()) {
  timer_.emplace(tools_.io);
}
Exchange::~Exchange() = default;

bool Exchange::post(std::function<void()> action) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  boost::asio::post(tools_.io, [weak = weak(), action = std::move(action)] {
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

Line& Exchange::line(std::uint64_t actor) {
  auto& line = lines_[actor];
  if (!line) line = std::make_shared<Line>(*this, actor);
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
  if (!std::exchange(drain_posted_, true)) {
    boost::asio::post(tools_.io, [weak = weak()] {
      if (const auto alive = weak.lock()) alive->drain();
    });
  }
  return state;
}

void Exchange::drain() {
  std::vector<Incoming> incoming;
  {
    std::lock_guard lock(mutex_);
    drain_posted_ = false;
    if (closed_) return;
    incoming.swap(incoming_);
  }
  std::vector<Line*> touched;
  for (auto& each : incoming) {
    Line& to = line(each.request.actor);
    to.add(std::move(each.request), std::move(each.state));
    if (touched.empty() || touched.back() != &to) touched.push_back(&to);
  }
  for (Line* each : touched)
    each->pump();
}

void Exchange::pump_later(std::uint64_t actor) {
  post([this, actor] {
    if (const auto found = lines_.find(actor); found != lines_.end()) found->second->pump();
  });
}

void Exchange::expect(Clock::time_point until, std::uint64_t actor, std::uint64_t call) {
  due_.push({until, actor, call});
  arm();
}

void Exchange::arm() {
  if (due_.empty() || due_.top().until >= armed_for_ || !timer_) return;
  armed_for_ = due_.top().until;
  timer_->expires_at(armed_for_);
  timer_->async_wait([weak = weak()](const boost::system::error_code& error) {
    const auto alive = weak.lock();
    if (error || !alive || alive->closed_) return;
    alive->armed_for_ = Clock::time_point::max();
    const auto now = Clock::now();
    while (!alive->due_.empty() && alive->due_.top().until <= now) {
      const Due due = alive->due_.top();
      alive->due_.pop();
      if (const auto found = alive->lines_.find(due.actor); found != alive->lines_.end())
        found->second->expire(due.call);
    }
    alive->arm();
  });
}

std::shared_ptr<detail::CallState> Exchange::spawn(detail::SpawnRequest request) {
  auto state = std::make_shared<detail::CallState>(shared_from_this());
  const auto& options = request.options;
  wire::SpawnActor message;
  bool known = true;
  message.placement = placement_of(options.placement, known);
  if (!known) {
    state->finish({.error = {"bad_request", "[spawn] placement is \"" + options.placement +
                                                "\": pack, spread or together"}});
    return state;
  }
  message.class_name = std::move(request.class_name);
  message.types = request.types;
  message.arguments = std::move(request.arguments);
  message.name = options.name;
  message.get_or_create = request.get_or_create;
  message.detached = options.detached;
  message.gpus = options.resources.gpus;
  message.cores = options.resources.cores;
  message.group = options.group;
  message.max_restarts = options.max_restarts;
  if (options.hang_after.count() < 0) {
    state->finish({.error = {"bad_request", "[spawn] hang_after is " +
                                                std::to_string(options.hang_after.count()) +
                                                " ms: 0 means that no method hangs"}});
    return state;
  }
  message.hang_after_ms =
      static_cast<std::uint32_t>(std::min<std::int64_t>(options.hang_after.count(), 0xffffffff));
  const auto deadline = std::clamp(options.deadline, Milliseconds(1), Milliseconds(86'400'000));
  message.deadline_ms = static_cast<std::uint32_t>(deadline.count());
  const bool posted = post([this, state, message = std::move(message), deadline] {
    this->request<wire::ActorAddress>(
        message, deadline + kThreadMargin, [state](Result<wire::ActorAddress> answer) {
          if (!answer) return state->finish({.error = answer.error()});
          ValueWriter out;
          Value<std::uint64_t>::write(out, answer.value().id);
          state->finish({.bytes = std::make_shared<const std::string>(out.take())});
        });
  });
  if (!posted) state->finish({.error = *closed_});
  return state;
}

template <class Answer, class M>
Result<Answer> Exchange::ask(M message, control::Milliseconds deadline) {
  if (on_own_thread())
    return Error{"bad_request", "[actors] the call would wait for itself inside a callback"};
  auto promise = std::make_shared<std::promise<Result<Answer>>>();
  auto future = promise->get_future();
  const bool posted = post([this, promise, message = std::move(message), deadline] {
    request<Answer>(message, deadline,
                    [promise](Result<Answer> answer) { promise->set_value(std::move(answer)); });
  });
  if (!posted) return *closed_;
  // The loop may end with the question still on its way.
  if (future.wait_for(deadline + kThreadMargin) != std::future_status::ready)
    return Error{"timeout",
                 "[actors] no answer within " + std::to_string(deadline.count()) + " ms"};
  return future.get();
}

Result<std::uint64_t> Exchange::find(const std::string& name, const std::string& class_name,
                                     Milliseconds deadline) {
  auto found = ask<wire::ActorAddress>(wire::FindActor{0, name}, deadline);
  if (!found) return found.error();
  if (!class_name.empty() && found.value().class_name != class_name) {
    return Error{"bad_request", "[actors] \"" + name + "\" is a " + found.value().class_name +
                                    ", not a " + class_name};
  }
  return found.value().id;
}

Result<Unit> Exchange::kill(std::uint64_t actor, bool restart) {
  auto done = ask<wire::Done>(wire::KillActor{actor, restart}, kAnswerDeadline);
  if (!done) return done.error();
  return Unit{};
}

Result<std::vector<UserActorInfo>> Exchange::list() {
  auto list = ask<wire::ActorList>(wire::ListActors{}, kAnswerDeadline);
  if (!list) return list.error();
  std::vector<UserActorInfo> actors;
  for (auto& entry : list.value().actors) {
    UserActorInfo info;
    info.id = entry.id;
    info.name = std::move(entry.name);
    info.class_name = std::move(entry.class_name);
    info.state = wire::to_string(entry.state);
    info.host = std::move(entry.host);
    info.pid = entry.pid;
    info.detached = entry.detached;
    info.restarts = entry.restarts;
    info.resources = {static_cast<int>(entry.gpus.size()), entry.cores};
    info.gpus.assign(entry.gpus.begin(), entry.gpus.end());
    info.owner = std::move(entry.owner);
    info.cause = std::move(entry.cause);
    actors.push_back(std::move(info));
  }
  return actors;
}

Result<std::vector<ActorClassInfo>> Exchange::classes() {
  auto list = ask<wire::ClassList>(wire::ListClasses{}, kAnswerDeadline);
  if (!list) return list.error();
  std::vector<ActorClassInfo> classes;
  for (auto& entry : list.value().classes) {
    ActorClassInfo info{entry.name, entry.arguments, entry.needs_torch,
                        {},         entry.plugin,    std::move(entry.lacking)};
    for (auto& method : entry.methods)
      info.methods.push_back({method.name, method.arguments, method.result});
    classes.push_back(std::move(info));
  }
  return classes;
}

Result<Unit> Exchange::watch(std::uint64_t actor, std::function<void(const Death&)> told) {
  post([this, actor, told = std::move(told)] { watchers_[actor].push_back(told); });
  auto done = ask<wire::Done>(wire::WatchActor{actor}, kAnswerDeadline);
  if (!done) return done.error();
  return Unit{};
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
    for (const auto& tell : told)
      tell(to_public(death));
  }
  return true;
}

control::ConnectionOptions Exchange::connection_options(const std::string& endpoint,
                                                        const std::string& ticket,
                                                        const std::string& keys) const {
  control::ConnectionOptions options;
  options.endpoint = endpoint;
  options.incarnation = tools_.incarnation;
  options.hello.role = "caller";
  options.hello.name = tools_.name;
  options.hello.attributes["ticket"] = ticket;
  if (!keys.empty()) options.keys = control::client_keys_from(keys, "the controller");
  options.socket = tools_.socket;
  return options;
}

void Exchange::open_blob_link(const BlobDoor& door) {
  const auto& endpoint = door.endpoint;
  auto& link = blob_links_[endpoint];
  if (link) return;
  auto options = connection_options(endpoint, door.ticket, door.keys);
  link = std::make_shared<control::BlobConnection>(tools_.io, std::move(options), tools_.blobs);
  const auto again = [this, endpoint] { post([this, endpoint] { blob_links_.erase(endpoint); }); };
  link->on_lost([again](const std::string&) { again(); });
  link->start({}, [again](const wire::Failure&) { again(); });
}

void Exchange::fetch_blob(const BlobDoor& door, control::BlobId blob, std::uint64_t bytes,
                          control::Milliseconds deadline, control::BlobHandler handler) {
  try {
    open_blob_link(door);
  } catch (const std::exception& error) {
    blob_links_.erase(door.endpoint);
    return handler({nullptr, {wire::FailureCode::lost, error.what()}});
  }
  blob_links_[door.endpoint]->fetch(blob, bytes, deadline, std::move(handler));
}

Result<std::shared_ptr<const std::string>> Exchange::fetch(const Holder& holder,
                                                           control::BlobId blob,
                                                           std::uint64_t bytes,
                                                           Milliseconds deadline) {
  if (on_own_thread())
    return Error{"bad_request", "[future] wait would wait for itself inside a callback"};
  auto promise = std::make_shared<std::promise<control::BlobResult>>();
  auto future = promise->get_future();
  const bool posted = post([this, holder, blob, bytes, deadline, promise] {
    fetch_blob(holder.door, blob, bytes, deadline,
               [promise](control::BlobResult result) { promise->set_value(std::move(result)); });
  });
  if (!posted) return *closed_;
  if (future.wait_for(deadline + kThreadMargin) != std::future_status::ready)
    return Error{"timeout", "[future] the result was not here in time"};
  auto result = future.get();
  if (result) return result.bytes;
  Error error = to_error(result.failure);
  error.what = "[future] the result of actor " + std::to_string(holder.actor) +
               " did not come: " + error.what;
  return error;
}

void Exchange::release(const Holder& holder, control::BlobId blob) {
  post([this, actor = holder.actor, incarnation = holder.incarnation, blob] {
    if (const auto found = lines_.find(actor); found != lines_.end())
      found->second->release(incarnation, blob);
  });
}

}  // namespace troupe::calls
