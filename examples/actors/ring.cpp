// Tensors around a ring of actors, from one to the next without passing this program:
//   troupe start --plugin libtroupe_example_actors.so --listen ipc:///tmp/my-cluster/control.sock
//   troupe_example_ring ipc:///tmp/my-cluster/control.sock 4
#include "ring.h"

#include <chrono>
#include <iostream>
#include <string_view>

#include "troupe/client.h"

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  const bool help = argc > 1 && std::string_view(argv[1]) == "--help";
  if (help || argc != 3 || argv[1][0] == '-' || std::atoi(argv[2]) < 1) {
    (help ? std::cout : std::cerr) << "usage: " << argv[0] << " ENDPOINT MEMBERS\n";
    return help ? 0 : 2;
  }
  const auto fail = [](const troupe::Error& error) {
    std::cerr << error.code << ": " << error.message() << "\n";
    return 1;
  };
  auto client = troupe::Client::connect(argv[1]);
  if (!client) return fail(client.error());
  auto actors = client.value().actors();

  std::vector<troupe::Future<troupe::ActorHandle<RingMember>>> coming;
  for (int i = 0; i < std::atoi(argv[2]); ++i)
    coming.push_back(actors.spawn_later<RingMember>({.placement = "spread", .group = "ring"}, 2.f));
  auto ring = troupe::all_of(coming, 30s);
  if (!ring) return fail(ring.error());

  // Each call's argument is the call before it: the tensor itself never comes here.
  auto tensor = ring.value()[0].call<&RingMember::make>(512, 512);
  for (auto& member : ring.value())
    tensor = member.call<&RingMember::scale>(tensor);
  const auto sum = ring.value()[0].call<&RingMember::sum>(tensor).wait(30s);
  if (!sum) return fail(sum.error());
  std::cout << "sum " << sum.value() << "\n";
  if (!std::cout.flush())
    return fail({troupe::ErrorCode::failed, "standard output cannot be written"});
}
