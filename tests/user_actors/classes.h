#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "troupe/actor_plugin.h"

namespace troupe::testing {

struct Point {
  double x = 0, y = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(x, y);
  }
  bool operator==(const Point&) const = default;
};

class Counter {
 public:
  explicit Counter(std::int64_t start) : sum_(start) {}
  std::int64_t add(std::int64_t amount) { return sum_ += amount; }
  std::int64_t value() const { return sum_; }
  void reset() { sum_ = 0; }

 private:
  std::int64_t sum_;
};

/// Does what tests need an actor to do.
class Probe {
 public:
  Probe(ActorContext& context, std::string name) : context_(context), name_(std::move(name)) {}

  std::string name() const { return name_; }
  void append(std::int64_t number) { seen_.push_back(number); }
  std::vector<std::int64_t> seen() const { return seen_; }
  std::string fail(std::string text);
  void sleep(std::int64_t milliseconds);
  /// Makes that file, so that others know that the actor is in here, and sleeps for ten minutes.
  void stay(std::string file);
  /// Returns when somebody has made that file.
  void await(std::string file);
  /// Works as long as `sleep` would, and says all the time that it gets on.
  std::int64_t labour(std::int64_t milliseconds);
  void crash(std::int64_t signal);
  void leave(std::int64_t code);
  std::uint64_t restarts() const { return context_.restarts(); }
  Array array(std::int64_t elements, float value);
  double sum(Array array) const;
  Array twice(Array array) const;
  std::string blob(std::uint64_t bytes) const { return std::string(bytes, 'x'); }
  std::int64_t call_other(ActorHandle<Counter> other, std::int64_t amount);
  ActorHandle<Counter> spawn_counter(std::int64_t start, bool detached);
  ActorHandle<Counter> find_counter(std::string name);
  std::map<std::string, Point> points(std::optional<Point> point, std::vector<Point> more);
  /// Returns what a child of this process would have beyond standard input, output and error.
  std::vector<std::string> open_to_children() const;

 private:
  ActorContext& context_;
  std::string name_;
  std::vector<std::int64_t> seen_;
};

/// Class whose constructor throws when it is told to.
class Fussy {
 public:
  explicit Fussy(bool content);
  std::int64_t one() const { return 1; }
};

/// Class that is in no plugin.
class Stranger {
 public:
  void nothing() {}
};

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Counter, (std::int64_t), add, value, reset)
TROUPE_ACTOR(troupe::testing::Probe, (std::string), name, append, seen, fail, sleep, stay, labour,
             crash, leave, restarts, array, sum, twice, blob, call_other, spawn_counter,
             find_counter, points, open_to_children, await)
TROUPE_ACTOR(troupe::testing::Fussy, (bool), one)
TROUPE_ACTOR(troupe::testing::Stranger, (), nothing)
