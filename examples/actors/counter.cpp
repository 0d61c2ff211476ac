// A counter in the cluster:
//   troupe start --plugin libtroupe_example_actors.so --listen ipc:///tmp/my-cluster/control.sock
//   troupe_example_counter ipc:///tmp/my-cluster/control.sock
#include "counter.h"

#include <iostream>
#include <string_view>

#include "troupe/actor.h"
#include "troupe/client.h"

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  const bool help = argc > 1 && std::string_view(argv[1]) == "--help";
  if (help || argc != 2 || argv[1][0] == '-') {
    (help ? std::cout : std::cerr) << "usage: " << argv[0] << " ENDPOINT\n";
    return help ? 0 : 2;
  }
  const auto fail = [](const troupe::Error& error) {
    std::cerr << error.code << ": " << error.message() << "\n";
    return 1;
  };
  auto client = troupe::Client::connect(argv[1]);
  if (!client) return fail(client.error());
  auto actors = client.value().actors();

  // The same counter for everybody who asks for this name; it outlives this program.
  auto counter = actors.get_or_create<Counter>({.name = "visits", .detached = true}, 0);
  if (!counter) return fail(counter.error());
  for (int i = 0; i < 3; ++i) {
    const auto sum = counter.value().call<&Counter::add>(1).wait(30s);
    if (!sum) return fail(sum.error());
    std::cout << sum.value() << "\n";
  }
  if (!std::cout.flush())
    return fail({troupe::ErrorCode::failed, "standard output cannot be written"});
}
