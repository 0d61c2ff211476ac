#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "actors/actor_process.h"
#include "actors/stage/progress.h"
#include "actors/stage/stage.h"
#include "models/spec/fingerprint.h"
#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "transport/control/blob_channel.h"
#include "transport/wire/done.h"
#include "transport/wire/inspect_messages.h"

using namespace troupe;
using namespace std::chrono_literals;
using actors::Stage;
using control::testing::Event;

namespace {

namespace fs = std::filesystem;

wire::LoadStage whole(const std::string& model) {
  wire::LoadStage load;
  load.deployment = 7;
  load.model = model;
  load.dtype = ComputeType::float32;
  load.last_block = 5;
  load.embeds = load.projects = true;
  return load;
}

const std::string kTiny = TROUPE_SOURCE_DIR "/tests/fixtures/tiny-pixart";

struct Enough {};

/// A controller of one actor, which runs on a thread of the test's process.
class Rehearsal {
 public:
  Rehearsal()
      : server_(loop_, control::testing::server_at(folder_.endpoint("control"))),
        blob_server_(loop_, control::testing::server_at(folder_.endpoint("blobs")), blobs_) {
    Event<control::PeerId> came;
    server_.run([&](control::Server& server) {
      server.on_ready([&](control::PeerId peer) { came.set(peer); });
      server.on_message(
          [this](control::PeerId, const wire::Header& header, std::span<const std::byte>) {
            if (header.kind == wire::Kind::hold_changed) held.set(true);
          });
    });
    actor_ = std::thread([this] {
      actors::ActorProcess actor({.control_endpoint = folder_.endpoint("control"),
                                  .blob_endpoint = folder_.endpoint("blobs"),
                                  .incarnation = 77,
                                  .token = "secret"});
      exit_code_ = actor.run();
    });
    peer_ = came.wait(60s);
  }
  ~Rehearsal() {
    if (actor_.joinable()) shut_down();
  }

  template <class M>
  void tell(const M& message) {
    server_.run([&](control::Server& server) { server.send(peer_, message); });
  }
  /// "loaded", "done", or what the failure says.
  template <class M>
  void ask(const M& message, Event<std::string>& answer) {
    server_.run([&](control::Server& server) {
      server.request(peer_, message, 60s, [&](const control::Reply& reply) {
        answer.set(!reply                                     ? reply.failure().what
                   : reply.kind() == wire::Kind::stage_loaded ? "loaded"
                                                              : "done");
      });
    });
  }
  /// Happens when the actor is held first.
  Event<bool> held;
  int shut_down() {
    tell(wire::Shutdown{});
    actor_.join();
    return exit_code_;
  }

 private:
  control::IpcFolder folder_;
  control::testing::Loop loop_;
  control::BlobStore blobs_;
  control::testing::On<control::Server> server_;
  control::testing::On<control::BlobServer> blob_server_;
  std::thread actor_;
  control::PeerId peer_ = 0;
  int exit_code_ = -1;
};

}  // namespace

TEST_CASE("loading shows life at every tensor, and what the tick throws ends it there") {
  int tensors = 0;
  const Stage stage(whole(kTiny), at::kCPU, [&] { ++tensors; });
  CHECK(tensors > 100);
  int few = 0;
  const auto load = [&] {
    const Stage cut(whole(kTiny), at::kCPU, [&] {
      if (++few == 10) throw Enough{};
    });
  };
  CHECK_THROWS_AS(load(), Enough);
  CHECK(few == 10);
}

TEST_CASE("a loading leaves when its deployment is taken down or the process leaves, others not") {
  actors::WorkProgress progress;
  progress.tick_loading(7);
  CHECK(progress.count() == 1);
  progress.unload(8);
  progress.tick_loading(7);
  CHECK_THROWS_AS(progress.tick_loading(8), actors::LoadCancelled);
  CHECK_FALSE(progress.ended(3));
  progress.end_all();
  CHECK_THROWS_AS(progress.tick_loading(7), actors::LoadCancelled);
  CHECK_THROWS_AS(progress.tick_in(3), actors::EpochEnded);
}

TEST_CASE("an actor drops the loading of what was taken down, answers, and loads the next") {
  Rehearsal rehearsal;
  Event<std::string> first, second, aborted, third;
  rehearsal.ask(whole(kTiny), first);
  CHECK(first.wait(60s) == "loaded");
  auto other = whole(kTiny);
  other.deployment = 8;
  rehearsal.tell(wire::Unload{8});
  rehearsal.ask(other, second);
  rehearsal.ask(wire::AbortEpoch{1, "a test"}, aborted);
  CHECK(second.wait(60s) == "[actor] deployment 8 was taken down while it was loaded");
  CHECK(aborted.wait(60s) == "done");
  other.deployment = 9;
  rehearsal.ask(other, third);
  CHECK(third.wait(60s) == "loaded");
  CHECK(rehearsal.shut_down() == 0);
}

TEST_CASE("a hold is met by what is computed, not by what is over") {
  Rehearsal rehearsal;
  Event<std::string> armed, over, held, released;
  wire::InjectFault fault{
      .fault = wire::FaultKind::hold, .seconds = 3600, .at = {.phase = wire::HoldPhase::loading}};
  rehearsal.ask(fault, armed);
  CHECK(armed.wait(60s) == "done");
  auto load = whole(kTiny);
  load.deployment = 8;
  rehearsal.tell(wire::Unload{8});
  rehearsal.ask(load, over);
  CHECK(troupe::testing::has(over.wait(60s), "was taken down"));
  CHECK_FALSE(rehearsal.held.happened());
  load.deployment = 9;
  rehearsal.ask(load, held);
  CHECK(rehearsal.held.wait(60s));
  CHECK_FALSE(held.happened());
  fault.fault = wire::FaultKind::release;
  rehearsal.ask(fault, released);
  CHECK(released.wait(60s) == "done");
  CHECK(held.wait(60s) == "loaded");
}

TEST_CASE("a folder that is not as the plan saw it is not loaded, nor is its text encoder") {
  const troupe::testing::Scratch scratch;
  const fs::path model = scratch.path / "model";
  fs::copy(kTiny, model, fs::copy_options::recursive);
  auto load = whole(model.string());
  load.fingerprint = spec::fingerprint(model);
  Stage stage(load, at::kCPU);
  std::vector<std::string> cut;
  const auto encode = [&] { stage.encode_text(0, {"a cat"}, 8, false, cut, [] {}); };
  CHECK_NOTHROW(encode());
  auto streamed = load;
  streamed.offload = OffloadChoice::blocks;
  const Stage streams(streamed, at::kCPU);
  CHECK_NOTHROW(streams.check_streamed());
  const auto weights = model / "text_encoder/model.safetensors";
  REQUIRE(fs::exists(weights));
  fs::copy_file(weights, model / "copy");
  fs::rename(model / "copy", weights);
  const std::string why = "its files have changed since the job was accepted";
  CHECK(troupe::testing::message_of(encode).find(why) != std::string::npos);
  CHECK(troupe::testing::message_of([&] { streams.check_streamed(); }).find(why) !=
        std::string::npos);
  CHECK_NOTHROW(stage.check_streamed());  // it keeps its blocks
  CHECK(troupe::testing::message_of([&] { stage.vae(); }).find(why) != std::string::npos);
  CHECK(troupe::testing::message_of([&] { const Stage again(load, at::kCPU); }).find(why) !=
        std::string::npos);
}
