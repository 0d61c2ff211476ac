#include "base/format.h"
#include "transport/calls/exchange.h"
#include "transport/wire/done.h"

// What a process asks the controller of users' actors.
namespace troupe::calls {
namespace {

constexpr control::Milliseconds kAnswerDeadline{30'000};

wire::Placement placement_of(const std::string& text, bool& known) {
  known = true;
  if (text == "pack") return wire::Placement::pack;
  if (text == "spread") return wire::Placement::spread;
  if (text == "together") return wire::Placement::together;
  known = false;
  return wire::Placement::pack;
}

}  // namespace

std::shared_ptr<detail::CallState> Exchange::spawn(detail::SpawnRequest request) {
  auto state = std::make_shared<detail::CallState>(shared_from_this());
  const auto& options = request.options;
  wire::SpawnActor message;
  bool known = true;
  message.placement = placement_of(options.placement, known);
  if (!known) {
    state->finish({.error = {ErrorCode::bad_request, "[spawn] placement is \"" + options.placement +
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
    state->finish(
        {.error = {ErrorCode::bad_request,
                   fmt::format("[spawn] hang_after is {} ms: 0 means that no method hangs",
                               options.hang_after.count())}});
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
    return Error{ErrorCode::bad_request,
                 "[actors] the call would wait for itself inside a callback"};
  auto promise = std::make_shared<std::promise<Result<Answer>>>();
  auto future = promise->get_future();
  const bool posted = post([this, promise, message = std::move(message), deadline] {
    request<Answer>(message, deadline,
                    [promise](Result<Answer> answer) { promise->set_value(std::move(answer)); });
  });
  if (!posted) return *closed_;
  // The loop may end with the question still on its way.
  if (future.wait_for(deadline + kThreadMargin) != std::future_status::ready)
    return Error{ErrorCode::timeout,
                 fmt::format("[actors] no answer within {} ms", deadline.count())};
  return future.get();
}

Result<std::uint64_t> Exchange::find(const std::string& name, const std::string& class_name,
                                     Milliseconds deadline) {
  auto found = ask<wire::ActorAddress>(wire::FindActor{0, name}, deadline);
  if (!found) return found.error();
  if (!class_name.empty() && found.value().class_name != class_name) {
    return Error{ErrorCode::bad_request, "[actors] \"" + name + "\" is a " +
                                             found.value().class_name + ", not a " + class_name};
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
    info.state = entry.state;
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
  auto own_thread = std::make_shared<control::SharedLoop::LoopPin>(tools_.loop);
  post([this, actor, told = std::move(told), own_thread] {
    watchers_[actor].push_back({told, own_thread});
  });
  auto done = ask<wire::Done>(wire::WatchActor{actor}, kAnswerDeadline);
  if (done) return Unit{};
  post([this, actor, own_thread] {
    const auto found = watchers_.find(actor);
    if (found == watchers_.end()) return;
    std::erase_if(found->second,
                  [&](const Watcher& watcher) { return watcher.own_thread == own_thread; });
    if (found->second.empty()) watchers_.erase(found);
  });
  return done.error();
}

}  // namespace troupe::calls
