// What a recording of LibTorch's takes and does not give back where it fails: here a graph that
// fails at each of its steps stands for that.
#include "kernels/graph_recorder.h"

#include <stdexcept>
#include <string>

#include "tests/support/doctest.h"

using troupe::kernels::run_or_clean_up;

namespace {

/// Takes the allocator's pool as it begins, and gives it back at the end of an end that succeeds.
struct Graph {
  int& taken;
  std::string fails;

  void begin() {
    if (fails == "before begin") throw std::runtime_error(fails);
    ++taken;
    if (fails == "begin") throw std::runtime_error(fails);
  }
  void end() {
    if (fails == "end") throw std::runtime_error(fails);
    give_back();
    if (fails == "after end") throw std::runtime_error(fails);
  }
  void give_back() {
    if (taken == 0) throw std::logic_error("nothing is taken");
    --taken;
  }
};

}  // namespace

TEST_CASE("a pool is given back once, wherever the recording fails, and the first cause is told") {
  for (const std::string fails : {"", "before begin", "begin", "end", "after end"}) {
    CAPTURE(fails);
    int taken = 0;
    Graph graph{taken, fails};
    std::string told;
    try {
      run_or_clean_up([&] { graph.begin(); }, [&] { graph.give_back(); });
      CHECK(taken == 1);
      run_or_clean_up([&] { graph.end(); }, [&] { graph.give_back(); });
    } catch (const std::runtime_error& error) {
      told = error.what();
    }
    CHECK(told == fails);
    CHECK(taken == 0);
  }
}
