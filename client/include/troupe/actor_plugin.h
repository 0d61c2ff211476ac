#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/actor.h"

/// TROUPE_PLUGIN(Class, …) declares the classes of a plugin. It stands in one source file of the
/// shared library that `troupe start --plugin` is given. The classes have their TROUPE_ACTOR in
/// headers.
#define TROUPE_PLUGIN(...)                                                     \
  extern "C" [[gnu::visibility("default")]] const troupe::plugin::Description* \
  troupe_plugin_v1() {                                                         \
    static const troupe::plugin::Table<__VA_ARGS__> table;                     \
    return &table.description;                                                 \
  }

namespace troupe {

/// Context of an actor: its own id, name and GPUs, and the cluster's other actors. Lives as long as
/// the actor; its methods may be called from the actor's methods and constructor, and from threads
/// of the actor's own.
class ActorContext {
 public:
  virtual ~ActorContext() = default;
  virtual std::uint64_t id() const = 0;
  virtual const std::string& name() const = 0;  // "" = none
  virtual std::uint64_t restarts() const = 0;
  virtual const std::vector<int>& gpus() const = 0;  // the host's numbers of its reserved GPUs
  /// The cluster's actors, to spawn, find and call.
  virtual Actors actors() = 0;
  /// Reports that a long method makes progress: `hang_after` counts anew from here. Costs next to
  /// nothing.
  virtual void progress() = 0;
  /// Returns a handle to this actor, to be handed on.
  template <class T>
  ActorHandle<T> self() {
    return actors().template handle<T>(id());
  }
};

namespace plugin {

inline constexpr std::uint32_t kAbi = 2;
/// Properties of a build that must be the same for two shared objects to pass C++ objects to each
/// other.
#define TROUPE_DETAIL_TEXT2(x) #x
#define TROUPE_DETAIL_TEXT(x) TROUPE_DETAIL_TEXT2(x)
#if defined(_GLIBCXX_USE_CXX11_ABI)
inline constexpr const char* kBuild = "libstdc++ cxx11=" TROUPE_DETAIL_TEXT(
    _GLIBCXX_USE_CXX11_ABI) " abi=" TROUPE_DETAIL_TEXT(__GXX_ABI_VERSION);
#else
inline constexpr const char* kBuild = "abi=" TROUPE_DETAIL_TEXT(__GXX_ABI_VERSION);
#endif

/// Object of a user's class, without its type.
class Instance {
 public:
  virtual ~Instance() = default;
  /// Calls a method by its number. Throws ValueError when the bytes are not arguments of that
  /// method, and whatever the method throws.
  virtual void invoke(std::uint32_t method, ValueReader& arguments, ValueWriter& result) = 0;
};

struct Method {
  const char* name;
  const char* arguments;  // types: "int64, string"
  const char* result;
  std::uint64_t types;
};

struct Class {
  const char* name;
  const char* arguments;  // of the constructor
  std::uint64_t types;
  std::uint32_t needs_torch;
  std::uint32_t method_count;
  const Method* methods;
  Instance* (*create)(ActorContext& context, ValueReader& arguments);
};

/// Description of a plugin. Its first three fields stay as they are in every version.
struct Description {
  std::uint32_t abi = kAbi;
  std::uint32_t bytes = sizeof(Description);
  const char* build = kBuild;
  std::uint32_t class_count = 0;
  const Class* classes = nullptr;
};

template <class Tuple>
Tuple read_arguments(ValueReader& in) {
  Tuple values{};
  std::apply([&](auto&... value) { detail::FieldReader{in}(value...); }, values);
  in.expect_end();
  return values;
}

template <class T>
class Object final : public Instance {
 public:
  template <class... A>
  explicit Object(A&&... arguments) : object_(std::forward<A>(arguments)...) {}

  void invoke(std::uint32_t method, ValueReader& arguments, ValueWriter& result) override {
    static const std::vector<Stub> stubs = make_stubs();
    stubs.at(method)(object_, arguments, result);
  }

 private:
  using Stub = std::function<void(T&, ValueReader&, ValueWriter&)>;

  static std::vector<Stub> make_stubs() {
    std::vector<Stub> made;
    ActorClass<T>::each_method([&]<class M>(const char*, M method) {
      made.push_back([method](T& object, ValueReader& in, ValueWriter& out) {
        auto values = read_arguments<typename detail::MethodOf<M>::Arguments>(in);
        std::apply(
            [&](auto&... value) {
              using R = decltype((object.*method)(std::move(value)...));
              if constexpr (std::is_void_v<R>) {
                (object.*method)(std::move(value)...);
                Value<Unit>::write(out, Unit{});
              } else {
                Value<std::remove_cvref_t<R>>::write(out, (object.*method)(std::move(value)...));
              }
            },
            values);
      });
    });
    return made;
  }

  T object_;
};

template <class T>
Instance* create(ActorContext& context, ValueReader& in) {
  auto values = read_arguments<detail::ConstructorArguments<T>>(in);
  return std::apply(
      [&](auto&... value) -> Instance* {
        if constexpr (std::is_constructible_v<T, ActorContext&, decltype(std::move(value))...>) {
          return new Object<T>(context, std::move(value)...);
        } else {
          return new Object<T>(std::move(value)...);
        }
      },
      values);
}

/// Table of a plugin's classes, made on first use.
template <class... Ts>
struct Table {
  Table() {
    (add<Ts>(), ...);
    description.class_count = static_cast<std::uint32_t>(classes.size());
    description.classes = classes.data();
  }
  Table(const Table&) = delete;

  template <class T>
  void add() {
    auto& rows = methods.emplace_back(std::make_unique<std::vector<Method>>());
    for (const auto& row : detail::methods_of<T>())
      rows->push_back({row.name.c_str(), row.arguments.c_str(), row.result.c_str(), row.types});
    texts.push_back(
        std::make_unique<std::string>(detail::list_name<detail::ConstructorArguments<T>>()));
    classes.push_back({ActorClass<T>::kName, texts.back()->c_str(), detail::constructor_types<T>(),
                       detail::needs_torch<T>() ? 1u : 0u, static_cast<std::uint32_t>(rows->size()),
                       rows->data(), &create<T>});
  }

  Description description;
  std::vector<Class> classes;
  std::vector<std::unique_ptr<std::vector<Method>>> methods;
  std::vector<std::unique_ptr<std::string>> texts;
};

}  // namespace plugin
}  // namespace troupe
