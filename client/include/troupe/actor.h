#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>

#include "troupe/actor_future.h"
#include "troupe/actor_info.h"

/// Actors of your own: objects of C++ classes, each in a process of its own somewhere in the
/// cluster, called through typed handles. docs/actors.md shows the whole way. Only the standard
/// library is needed to include this.
///
///   auto counter = client.actors().spawn<Counter>({.name = "hits"}, std::int64_t{0});
///   auto sum = counter.value().call<&Counter::add>(2).wait(1s);
namespace troupe {

namespace detail {

struct CallRequest {
  std::uint64_t actor = 0;
  std::string method;
  std::uint64_t types = 0;
  const MethodRow* row = nullptr;  // for the text of a refusal; lives as long as the program
  bool text = false;               // arguments are a JSON array
  /// Arguments as bytes. The result of a future among the arguments is inserted at its hole.
  std::string arguments;
  struct Hole {
    std::size_t at = 0;  // in `arguments`
    std::shared_ptr<CallState> future;
  };
  std::vector<Hole> holes;
  Milliseconds deadline{60'000};
};

struct SpawnRequest {
  std::string class_name;
  std::uint64_t types = 0;
  std::string arguments;
  bool get_or_create = false;
  SpawnOptions options;
};

/// Makes the calls of a client or of an actor. Thread-safe.
class Caller : public std::enable_shared_from_this<Caller> {
 public:
  virtual ~Caller() = default;
  virtual bool on_own_thread() const = 0;
  /// Waits for the call. True once the call is done, false when `until` has passed.
  virtual bool wait(CallState& state, std::chrono::steady_clock::time_point until) = 0;
  virtual std::shared_ptr<CallState> call(CallRequest request) = 0;
  /// Starts an actor; the outcome is the actor's id as a value.
  virtual std::shared_ptr<CallState> spawn(SpawnRequest request) = 0;
  virtual Result<std::uint64_t> find(const std::string& name, const std::string& class_name,
                                     Milliseconds deadline) = 0;
  virtual Result<Unit> kill(std::uint64_t actor, bool restart) = 0;
  virtual Result<std::vector<UserActorInfo>> list() = 0;
  virtual Result<std::vector<ActorClassInfo>> classes() = 0;
  virtual Result<Unit> watch(std::uint64_t actor, std::function<void(const Death&)> told) = 0;
};

inline bool waits_for_itself(const Caller& caller) {
  return caller.on_own_thread();
}
inline bool wait_for(Caller& caller, CallState& state,
                     std::chrono::steady_clock::time_point until) {
  return caller.wait(state, until);
}

template <class T>
struct IsFuture : std::false_type {};
template <class R>
struct IsFuture<Future<R>> : std::true_type {};

/// Writes one argument as a P; for a future, notes a hole where its result belongs.
template <class P, class A>
void pack_argument(CallRequest& request, ValueWriter& out, A&& argument) {
  using Given = std::remove_cvref_t<A>;
  if constexpr (IsFuture<Given>::value) {
    static_assert(std::is_same_v<typename Given::Type, P>,
                  "the future's result is not the argument's type");
    request.holes.push_back({out.size(), argument.state()});
  } else {
    static_assert(std::is_convertible_v<A&&, P>, "this argument has not the method's type");
    if constexpr (std::is_same_v<Given, P>) {
      Value<P>::write(out, argument);
    } else {
      Value<P>::write(out, static_cast<P>(std::forward<A>(argument)));
    }
  }
}

}  // namespace detail

/// A typed reference to an actor: small, copied freely, may be an argument or a result.
template <class T>
class ActorHandle {
 public:
  ActorHandle() = default;
  ActorHandle(std::uint64_t id, std::shared_ptr<detail::Caller> caller)
      : id_(id), caller_(std::move(caller)) {}

  std::uint64_t id() const { return id_; }
  bool valid() const { return id_ != 0 && caller_; }

  /// Calls a method with arguments of its types, or futures of them: `call<&Counter::add>(2)`.
  /// Calls of one caller to one actor run in their order, each at most once. Never waits. The
  /// class's header is enough; its methods need not be linked.
  template <auto M, class... A>
  Future<typename detail::MethodOf<decltype(M)>::Result> call(A&&... arguments) const {
    return send<decltype(M)>(&detail::method_row<T, M>(), std::forward<A>(arguments)...);
  }
  /// Same as the call above, with the method as an argument: `call(&Counter::add, 2)`. The program
  /// must have the class's methods (inline, or linked).
  template <class M, class... A>
  requires std::is_member_function_pointer_v<M> Future<typename detail::MethodOf<M>::Result> call(
      M method, A&&... arguments)
  const { return send<M>(detail::find_method<T>(method), std::forward<A>(arguments)...); }

  /// Returns the same actor with another deadline for its calls (60 s otherwise).
  ActorHandle within(Milliseconds deadline) const {
    ActorHandle other = *this;
    other.deadline_ = deadline;
    return other;
  }
  /// Ends the actor's process for sure. With `restart` its constructor runs again, if it has
  /// restarts left.
  Result<Unit> kill(bool restart = false) const { return caller_->kill(id_, restart); }
  /// Calls `told` for every death of the actor from now on, on the caller's own thread; `told` must
  /// not block it.
  Result<Unit> monitor(std::function<void(const Death&)> told) const {
    return caller_->watch(id_, std::move(told));
  }

 private:
  template <class M, class... A>
  Future<typename detail::MethodOf<M>::Result> send(const detail::MethodRow* row,
                                                    A&&... arguments) const {
    using Types = detail::MethodOf<M>;
    using Parameters = typename Types::Arguments;
    static_assert(sizeof...(A) == std::tuple_size_v<Parameters>,
                  "the method takes another number of arguments");
    if (!row || !caller_) {
      const std::string why = !caller_ ? "[actor] the handle is empty"
                                       : std::string("[actor] ") + ActorClass<T>::kName +
                                             ": TROUPE_ACTOR does not name the method";
      auto state = std::make_shared<detail::CallState>(caller_);
      state->finish({.error = {ErrorCode::bad_request, why}});
      return Future<typename Types::Result>(std::move(state));
    }
    detail::CallRequest request;
    request.actor = id_;
    request.method = row->name;
    request.types = row->types;
    request.row = row;
    request.deadline = deadline_;
    ValueWriter out;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (detail::pack_argument<std::tuple_element_t<I, Parameters>>(request, out,
                                                                  std::forward<A>(arguments)),
       ...);
    }
    (std::index_sequence_for<A...>());
    request.arguments = out.take();
    return Future<typename Types::Result>(caller_->call(std::move(request)));
  }

  std::uint64_t id_ = 0;
  std::shared_ptr<detail::Caller> caller_;
  Milliseconds deadline_{60'000};
};

template <class T>
struct Value<ActorHandle<T>> {
  static void write(ValueWriter& out, const ActorHandle<T>& handle) {
    Value<std::uint64_t>::write(out, handle.id());
  }
  static void read(ValueReader& in, ActorHandle<T>& handle) {
    std::uint64_t id = 0;
    Value<std::uint64_t>::read(in, id);
    handle = ActorHandle<T>(id, in.caller());
  }
  static void name(std::string& out, int) {
    out += std::string("actor<") + ActorClass<T>::kName + ">";
  }
};

/// The actors of a cluster: of `Client::actors()`, or of an actor's own context. Thread-safe,
/// copied freely; must not outlive the client.
class Actors {
 public:
  explicit Actors(std::shared_ptr<detail::Caller> caller) : caller_(std::move(caller)) {}

  /// Starts an actor and waits until its constructor has run. Errors: bad_request (no such class,
  /// wrong types, bad option), refused (name taken), overloaded (no host has the resources),
  /// exception (of the constructor), died, timeout, lost.
  template <class T, class... A>
  Result<ActorHandle<T>> spawn(const SpawnOptions& options, A&&... arguments) {
    return spawn_later<T>(options, std::forward<A>(arguments)...)
        .wait(options.deadline + std::chrono::seconds(5));
  }
  /// Same as `spawn`, but does not wait: several actors start at once.
  template <class T, class... A>
  Future<ActorHandle<T>> spawn_later(const SpawnOptions& options, A&&... arguments) {
    return start<T>(options, false, std::forward<A>(arguments)...);
  }
  /// Returns the actor of that name and class. Errors: not_found, bad_request (of another class),
  /// timeout.
  template <class T>
  Result<ActorHandle<T>> get(const std::string& name,
                             Milliseconds deadline = std::chrono::seconds(30)) {
    auto id = caller_->find(name, ActorClass<T>::kName, deadline);
    if (!id) return id.error();
    return handle<T>(id.value());
  }
  /// Returns the actor called `options.name`, and makes it if there is none. Two that ask at once
  /// get the same actor.
  template <class T, class... A>
  Result<ActorHandle<T>> get_or_create(const SpawnOptions& options, A&&... arguments) {
    return start<T>(options, true, std::forward<A>(arguments)...)
        .wait(options.deadline + std::chrono::seconds(5));
  }
  template <class T>
  ActorHandle<T> handle(std::uint64_t id) const {
    return ActorHandle<T>(id, caller_);
  }

  Result<std::vector<UserActorInfo>> list() { return caller_->list(); }
  Result<std::vector<ActorClassInfo>> classes() { return caller_->classes(); }
  Result<Unit> kill(std::uint64_t actor, bool restart = false) {
    return caller_->kill(actor, restart);
  }
  Result<Unit> monitor(std::uint64_t actor, std::function<void(const Death&)> told) {
    return caller_->watch(actor, std::move(told));
  }
  /// Calls a method by its name, for people: arguments are a JSON array, the result is JSON. The
  /// actor's process reads and writes this JSON by the types of the class.
  Result<std::string> call_text(std::uint64_t actor, const std::string& method,
                                const std::string& json_arguments, Milliseconds deadline);
  /// Returns the id of a named actor of any class.
  Result<std::uint64_t> find(const std::string& name,
                             Milliseconds deadline = std::chrono::seconds(30)) {
    return caller_->find(name, "", deadline);
  }
  const std::shared_ptr<detail::Caller>& caller() const { return caller_; }

 private:
  template <class T, class... A>
  Future<ActorHandle<T>> start(const SpawnOptions& options, bool get_or_create, A&&... arguments) {
    using Parameters = detail::ConstructorArguments<T>;
    static_assert(sizeof...(A) == std::tuple_size_v<Parameters>,
                  "TROUPE_ACTOR names another number of arguments");
    detail::CallRequest packed;
    ValueWriter out;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (detail::pack_argument<std::tuple_element_t<I, Parameters>>(packed, out,
                                                                  std::forward<A>(arguments)),
       ...);
    }
    (std::index_sequence_for<A...>());
    static_assert(!(detail::IsFuture<std::remove_cvref_t<A>>::value || ...),
                  "a constructor takes no futures: wait for them first");
    return Future<ActorHandle<T>>(
        caller_->spawn({ActorClass<T>::kName, detail::constructor_types<T>(), out.take(),
                        get_or_create, options}));
  }

  std::shared_ptr<detail::Caller> caller_;
};

inline Result<std::string> Actors::call_text(std::uint64_t actor, const std::string& method,
                                             const std::string& json_arguments,
                                             Milliseconds deadline) {
  detail::CallRequest request;
  request.actor = actor;
  request.method = method;
  request.text = true;
  request.arguments = json_arguments;
  request.deadline = deadline;
  return Future<std::string>(caller_->call(std::move(request)))
      .wait(deadline + std::chrono::seconds(1));
}

}  // namespace troupe
