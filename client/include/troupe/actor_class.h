#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "troupe/actor_values.h"

/// TROUPE_ACTOR(Class, (constructor's argument types), method, …): makes a class one whose objects
/// can be actors. Once, in the header that both the plugin and its callers include, outside of all
/// namespaces.
///
///   class Counter {
///    public:
///     explicit Counter(std::int64_t start);
///     std::int64_t add(std::int64_t amount);
///   };
///   TROUPE_ACTOR(Counter, (std::int64_t), add)
///
/// A constructor may take a `troupe::ActorContext&` before these arguments; it is not named here.
/// A class with `static constexpr bool needs_torch = true;` runs in the process that has LibTorch.
#define TROUPE_ACTOR(Type, Constructor, ...)                                   \
  template <>                                                                  \
  struct troupe::ActorClass<Type> {                                            \
    using Made = void Constructor;                                             \
    static constexpr const char* kName = #Type;                                \
    template <class F>                                                         \
    static void each_method([[maybe_unused]] F&& f) {                          \
      __VA_OPT__(TROUPE_DETAIL_EXPAND(TROUPE_DETAIL_EACH(Type, __VA_ARGS__)))  \
    }                                                                          \
    template <auto M>                                                          \
    static constexpr const char* name_of() {                                   \
      __VA_OPT__(TROUPE_DETAIL_EXPAND(TROUPE_DETAIL_NAMES(Type, __VA_ARGS__))) \
      return nullptr;                                                          \
    }                                                                          \
  };

#define TROUPE_DETAIL_PARENS ()
#define TROUPE_DETAIL_EXPAND(...) TROUPE_DETAIL_EXPAND3(TROUPE_DETAIL_EXPAND3(__VA_ARGS__))
#define TROUPE_DETAIL_EXPAND3(...) TROUPE_DETAIL_EXPAND2(TROUPE_DETAIL_EXPAND2(__VA_ARGS__))
#define TROUPE_DETAIL_EXPAND2(...) TROUPE_DETAIL_EXPAND1(TROUPE_DETAIL_EXPAND1(__VA_ARGS__))
#define TROUPE_DETAIL_EXPAND1(...) TROUPE_DETAIL_EXPAND0(TROUPE_DETAIL_EXPAND0(__VA_ARGS__))
#define TROUPE_DETAIL_EXPAND0(...) \
  TROUPE_DETAIL_ONCE(TROUPE_DETAIL_ONCE(TROUPE_DETAIL_ONCE(TROUPE_DETAIL_ONCE(__VA_ARGS__))))
#define TROUPE_DETAIL_ONCE(...) __VA_ARGS__
#define TROUPE_DETAIL_EACH(Type, name, ...) \
  f(#name, &Type::name);                    \
  __VA_OPT__(TROUPE_DETAIL_AGAIN TROUPE_DETAIL_PARENS(Type, __VA_ARGS__))
#define TROUPE_DETAIL_AGAIN() TROUPE_DETAIL_EACH
#define TROUPE_DETAIL_NAMES(Type, name, ...)                               \
  if constexpr (troupe::detail::kSameMember<M, &Type::name>) return #name; \
  __VA_OPT__(TROUPE_DETAIL_NAMES_AGAIN TROUPE_DETAIL_PARENS(Type, __VA_ARGS__))
#define TROUPE_DETAIL_NAMES_AGAIN() TROUPE_DETAIL_NAMES

namespace troupe {

/// Constructor, methods and name of an actor's class, as TROUPE_ACTOR gives them.
template <class T>
struct ActorClass;

/// Result of a method that returns void, as a value.
struct Unit {
  bool operator==(const Unit&) const = default;
};
template <>
struct Value<Unit> {
  static void write(ValueWriter& out, const Unit&) { out.length(0); }
  static void read(ValueReader& in, Unit&) {
    if (in.length() != 0) throw ValueError("[value] is not empty");
  }
  static void name(std::string& out, int) { out += "unit"; }
};

namespace detail {

template <auto M>
struct MemberTag {};
/// True if two pointers to members are the same. The pointers are compared as types, so the linker
/// need not know the members.
template <auto A, auto B>
inline constexpr bool kSameMember = std::is_same_v<MemberTag<A>, MemberTag<B>>;

template <class R>
using ValueOf = std::conditional_t<std::is_void_v<R>, Unit, std::remove_cvref_t<R>>;

/// A method's types, taken apart.
template <class M>
struct MethodOf;
template <class R, class C, class... A>
struct MethodOf<R (C::*)(A...)> {
  using Result = ValueOf<R>;
  using Arguments = std::tuple<std::remove_cvref_t<A>...>;
};
template <class R, class C, class... A>
struct MethodOf<R (C::*)(A...) const> : MethodOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct MethodOf<R (C::*)(A...) noexcept> : MethodOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct MethodOf<R (C::*)(A...) const noexcept> : MethodOf<R (C::*)(A...)> {};

template <class F>
struct ConstructorOf;
template <class... A>
struct ConstructorOf<void(A...)> {
  using Arguments = std::tuple<std::remove_cvref_t<A>...>;
};
template <class T>
using ConstructorArguments = typename ConstructorOf<typename ActorClass<T>::Made>::Arguments;

template <class Tuple>
std::string list_name() {
  std::string text;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((text += (I ? ", " : "") + type_name<std::tuple_element_t<I, Tuple>>()), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Tuple>>());
  return text;
}

/// Hash (FNV-1a) of a signature's text, so that a call can be checked by one comparison.
inline std::uint64_t signature_hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char byte : text)
    value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return value;
}

/// A method as data.
struct MethodRow {
  std::string name;
  std::string arguments;  // "int64, string"
  std::string result;
  std::uint64_t types = 0;  // hash of "(arguments) -> result"
  std::string pointer;      // bytes of the pointer to member

  std::string signature() const { return "(" + arguments + ") -> " + result; }
};

/// The methods of a class, made once.
template <class T>
const std::vector<MethodRow>& methods_of() {
  static const std::vector<MethodRow> rows = [] {
    std::vector<MethodRow> made;
    ActorClass<T>::each_method([&]<class M>(const char* name, M pointer) {
      MethodRow row;
      row.name = name;
      row.arguments = list_name<typename MethodOf<M>::Arguments>();
      row.result = type_name<typename MethodOf<M>::Result>();
      row.types = signature_hash(row.signature());
      row.pointer.assign(reinterpret_cast<const char*>(&pointer), sizeof pointer);
      made.push_back(std::move(row));
    });
    return made;
  }();
  return rows;
}

/// Returns the row of a method, made once. The class's header is enough: the method need not be
/// linked.
template <class T, auto M>
const MethodRow& method_row() {
  static_assert(ActorClass<T>::template name_of<M>() != nullptr,
                "TROUPE_ACTOR does not name this method");
  static const MethodRow row = [] {
    MethodRow made;
    made.name = ActorClass<T>::template name_of<M>();
    made.arguments = list_name<typename MethodOf<decltype(M)>::Arguments>();
    made.result = type_name<typename MethodOf<decltype(M)>::Result>();
    made.types = signature_hash(made.signature());
    return made;
  }();
  return row;
}

/// The row of a method; null when TROUPE_ACTOR does not name it.
template <class T, class M>
const MethodRow* find_method(M pointer) {
  for (const auto& row : methods_of<T>()) {
    if (row.pointer.size() == sizeof pointer &&
        std::memcmp(row.pointer.data(), &pointer, sizeof pointer) == 0)
      return &row;
  }
  return nullptr;
}

template <class T>
std::uint64_t constructor_types() {
  return signature_hash(std::string("(").append(list_name<ConstructorArguments<T>>()).append(")"));
}

template <class T>
constexpr bool needs_torch() {
  if constexpr (requires { T::needs_torch; }) return T::needs_torch;
  return false;
}

}  // namespace detail
}  // namespace troupe
