#include "tests/fuzz/targets/all.h"
#include "tests/wire/every_message.h"

namespace troupe::fuzz {

void run_wire(std::string_view bytes) {
  const auto frame = std::as_bytes(std::span(bytes));
  auto payload = frame;
  refusable([&] {
    wire::decode_header(frame);
    payload = wire::payload_of(frame);
  });
  wire::EveryMessage::each([&]<class M>(const M&) {
    refusable([&] {
      const M message = wire::decode<M>(payload);
      // There is one encoding of each message, so what was read is written back as it was.
      const std::string again = wire::encode(message);
      require(std::equal(payload.begin(), payload.end(), wire::as_bytes(again).begin(),
                         wire::as_bytes(again).end()),
              "one encoding of each message");
    });
  });
}

std::vector<std::string> seeds_wire() {
  std::vector<std::string> seeds;
  wire::EveryMessage::each([&]<class M>(const M& message) {
    seeds.push_back(wire::encode(message));
    seeds.push_back(wire::encode_frame({}, message));
  });
  wire::SubmitJob submit;
  submit.job.request.prompts = {"a cat", "a dog"};
  submit.job.model = "/models/pixart";
  seeds.push_back(wire::encode(submit));
  wire::RunTasks tasks;
  tasks.commands.resize(5);
  seeds.push_back(wire::encode(tasks));
  wire::ConnectGroups groups;
  groups.groups.push_back({1, "edge 0-1", "shm", 0, {"shm:@a", "shm:@b"}});
  seeds.push_back(wire::encode(groups));
  wire::Hello hello{PeerRole::actor, "actor 3", "host", 42, "troupe", {{"device", "cpu"}}};
  seeds.push_back(wire::encode_frame({}, hello));
  return seeds;
}

}  // namespace troupe::fuzz
