#include "controller/deployments/deployments.h"

#include <deque>

#include "tests/controller/idle_environment.h"
#include "tests/controller/sample_model.h"

using namespace troupe;

namespace {

/// Keeps what actors are asked until the test answers it, and does what is to be done later when it
/// says so.
class PatientEnvironment final : public testing::NoStages {
 public:
  struct Asked {
    control::PeerId peer;
    wire::Kind kind;
    control::ReplyHandler handler;
  };
  double now() const override { return 0; }
  std::uint64_t random() override { return 1; }
  void after(double, std::function<void()> action) override { later.push_back(std::move(action)); }
  bool send_frame(control::PeerId peer, std::string frame) override {
    sent.emplace_back(peer, std::move(frame));
    return true;
  }
  void request_frame(control::PeerId peer, std::string frame, control::Milliseconds,
                     control::ReplyHandler handler) override {
    asked.push_back({peer, wire::kind_of(frame), std::move(handler)});
  }
  void drop(control::PeerId, const std::string&) override {}

  void run() {
    for (; !later.empty(); later.pop_front())
      later.front()();
  }
  /// The peer answers the oldest message of this kind. False when it was asked none.
  template <class M>
  bool answer(control::PeerId peer, wire::Kind kind, const M& message) {
    const auto found = std::ranges::find_if(
        asked, [&](const Asked& one) { return one.peer == peer && one.kind == kind; });
    if (found == asked.end()) return false;
    const auto handler = std::move(found->handler);
    asked.erase(found);
    const auto frame = wire::encode_frame({}, message);
    const auto bytes = wire::as_bytes(frame);
    handler(control::Reply(wire::decode_header(bytes), wire::payload_of(bytes)));
    run();
    return true;
  }

  std::deque<std::function<void()>> later;
  std::vector<Asked> asked;
  std::vector<std::pair<control::PeerId, std::string>> sent;
};

control::PeerId peer_of(cluster::ActorId id) {
  return control::PeerId{1000 + id};
}

}  // namespace

TEST_CASE("a spare that comes in while groups are connected is told of them before any job") {
  PatientEnvironment environment;
  cluster::Members members{"secret"};
  cluster::Deployments deployments{environment, members};
  for (int i = 0; i < 2; ++i)
    test::add_idle(members, "here");
  wire::ImageRequest request;
  request.prompts = {"x"};
  const auto plan = plan::make_plan(test::sample_model(), request, {.pp = 2});
  const auto deployment = deployments.load({"model", 0}, plan, {0, 1});
  deployments.enter(deployment, 1, plan);
  environment.run();
  const auto load = [&](cluster::ActorId id) {
    return environment.answer(peer_of(id), wire::Kind::load_stage, wire::StageLoaded{});
  };
  const auto connect = [&](cluster::ActorId id) {
    return environment.answer(peer_of(id), wire::Kind::connect_groups, wire::GroupsConnected{});
  };
  for (const auto rank : {0, 1})
    REQUIRE(load(deployment->actor_of_rank[rank]));
  const auto first = deployment->epoch;
  const auto lost = deployment->actor_of_rank[0];
  const auto late = deployment->actor_of_rank[1];
  REQUIRE(connect(lost));
  // Its link breaks before its end is told, and another actor takes its place.
  members.lost(peer_of(lost));
  const auto spare = test::add_idle(members, "here");
  deployments.actor_ready(spare);
  environment.run();
  REQUIRE(deployment->actor_of_rank[0] == spare);
  connect(late);
  CHECK(deployment->state == cluster::Deployment::State::preparing);
  CHECK(deployment->epoch != first);
  // In the next epoch all are told.
  for (const auto id : {late, spare})
    REQUIRE(environment.answer(peer_of(id), wire::Kind::abort_epoch, wire::Done{}));
  REQUIRE(load(spare));
  for (const auto id : {late, spare})
    REQUIRE(connect(id));
  CHECK(deployment->state == cluster::Deployment::State::ready);
}

TEST_CASE(
    "an idle actor is taken beside what it keeps where that can stay, else only if it may go") {
  wire::ImageRequest request;
  request.prompts = {"x"};
  const auto plan = plan::make_plan(test::sample_model(), request, {});
  const auto need = cluster::needs_of(plan).front();
  using Actors = std::vector<cluster::ActorId>;
  using Beside = cluster::Deployments::Beside;
  for (const bool roomy : {true, false}) {
    CAPTURE(roomy);
    PatientEnvironment environment;
    cluster::Members members{"secret"};
    cluster::Deployments deployments{environment, members};
    const auto busy = test::add_idle(members, "here"), other = test::add_idle(members, "here");
    for (const auto actor : {busy, other})
      members.limit_memory(actor, roomy ? 2 * need.total() : need.total());
    deployments.enter(deployments.load({"one", 0}, plan, {busy}), 1, plan);
    CHECK(deployments.choose_actors(plan, Beside::nothing) == Actors{other});
    const auto another = deployments.load({"two", 0}, plan, {other});
    deployments.enter(another, 2, plan);
    deployments.leave(another, 2);
    environment.run();
    environment.answer(peer_of(other), wire::Kind::abort_epoch, wire::Done{});
    REQUIRE(members.is_idle(other));
    CHECK_FALSE(deployments.choose_actors(plan, Beside::nothing));
    const auto beside = deployments.choose_actors(plan, Beside::keep_loaded);
    CHECK(beside.has_value() == roomy);
    if (beside) CHECK(*beside == Actors{other});
    CHECK(deployments.choose_actors(plan, Beside::evict_idle) == Actors{other});
  }
}

TEST_CASE("a deployment's kind is what it computes and in which parts, not when and where") {
  cluster::Deployment one;
  one.id = 1;
  one.model = {"/models/demo", 7};
  one.degrees = {.pp = 2};
  one.stages = {{0, 14}, {14, 28}};
  auto other = one;
  other.id = 2;
  other.epoch = 9;
  other.actor_of_rank = {4, 5};
  other.model.loras.push_back({});
  CHECK(other.kind() == one.kind());
  const auto differs = [&](const std::function<void(cluster::Deployment&)>& change) {
    auto changed = one;
    change(changed);
    return changed.kind() != one.kind();
  };
  CHECK(differs([](auto& of) { of.model.folder += "2"; }));
  CHECK(differs([](auto& of) { of.model.fingerprint = 8; }));
  CHECK(differs([](auto& of) { of.dtype = ComputeType::bfloat16; }));
  CHECK(differs([](auto& of) { of.weight_dtype = WeightChoice::int8; }));
  CHECK(differs([](auto& of) { of.offload = OffloadChoice::blocks; }));
  CHECK(differs([](auto& of) { of.degrees = {.cfg = 2}; }));
  CHECK(differs([](auto& of) { of.stages = {{0, 13}, {13, 28}}; }));
}

TEST_CASE("text encoders stay where there is room, and go before any deployment does") {
  wire::ImageRequest request;
  request.prompts = {"x"};
  const auto plan = plan::make_plan(test::sample_model(), request, {});
  const auto need = cluster::needs_of(plan).front();
  REQUIRE(need.encoders > 0);
  struct Case {
    std::uint64_t limit;
    bool first, second;  // whose encoders stay when both are loaded
    std::size_t deployments;
  };
  const auto both = 2 * need.weights + need.working;
  for (const auto& [limit, first, second, count] :
       {Case{cluster::kNoLimit, false, false, 2}, Case{need.total(), false, false, 1},
        Case{need.total() + need.encoders, false, true, 1}, Case{both, false, false, 2},
        Case{both + need.encoders, false, true, 2},
        Case{both + 2 * need.encoders, true, true, 2}}) {
    CAPTURE(limit);
    PatientEnvironment environment;
    cluster::Members members{"secret"};
    cluster::Deployments deployments{environment, members};
    const auto actor = test::add_idle(members, "here");
    if (limit != cluster::kNoLimit) members.limit_memory(actor, limit);
    const auto begun = [&](const std::string& model, std::uint64_t job) {
      const auto deployment = deployments.load({model, 0}, plan, {actor});
      deployments.enter(deployment, job, plan);
      environment.run();
      environment.answer(peer_of(actor), wire::Kind::abort_epoch, wire::Done{});
      REQUIRE(environment.answer(peer_of(actor), wire::Kind::load_stage, wire::StageLoaded{}));
      environment.answer(peer_of(actor), wire::Kind::connect_groups, wire::GroupsConnected{});
      REQUIRE(deployment->state == cluster::Deployment::State::ready);
      CHECK(deployments.held(actor) <= limit);
      deployments.leave(deployment, job);
      return deployment;
    };
    const auto one = begun("one", 1);
    const auto alone = limit != cluster::kNoLimit && limit >= need.total() + need.encoders;
    CHECK(one->encoders.front() == (alone ? need.encoders : 0));
    environment.sent.clear();
    const auto two = begun("two", 2);
    CHECK(deployments.at(actor).size() == count);
    CHECK(two->encoders.front() == (second ? need.encoders : 0));
    if (count == 2) CHECK(one->encoders.front() == (first ? need.encoders : 0));
    // The actor is told what goes.
    std::vector<wire::Unload> told;
    for (const auto& [peer, frame] : environment.sent) {
      if (wire::kind_of(frame) == wire::Kind::unload)
        told.push_back(wire::decode<wire::Unload>(wire::payload_of(wire::as_bytes(frame))));
    }
    if (count == 1 || (alone && !first)) {
      REQUIRE(told.size() == 1);
      CHECK(told.front().deployment == one->id);
      CHECK(told.front().encoders_alone == (count == 2));
    } else {
      CHECK(told.empty());
    }
    // Another job in the place of the first: they come back where the second's can go.
    const auto found = deployments.find({"one", 0}, plan, 4);
    if (count == 2) {
      REQUIRE(found == one);
      deployments.enter(one, 3, plan);
      CHECK(one->encoders.front() == (second ? need.encoders : 0));
      CHECK(deployments.held(actor) <= limit);
    }
  }
}
