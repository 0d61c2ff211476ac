#include "tests/process/support/foreseen.h"

#include "client/convert.h"
#include "tests/support/doctest.h"

namespace troupe::testing {
namespace {

/// Calls `check` with each rank and what the report says of it.
template <class Check>
void for_each_rank(const nlohmann::json& report, const Foreseen& foreseen, const Check& check) {
  const auto& actors = report.at("actors");
  REQUIRE(actors.size() == foreseen.traffic.size());
  for (std::size_t rank = 0; rank < actors.size(); ++rank) {
    CAPTURE(rank);
    check(rank, actors[rank]);
  }
}

}  // namespace

spec::ModelSpec model_of(const Submission& submission) {
  auto model = spec::read_model_spec(submission.model);
  for (const auto& net : submission.request.controlnets)
    spec::add_controlnet(model, net);
  return model;
}

plan::Plan plan_of(const Submission& submission) {
  const auto asked = client::to_wire(submission).value();
  return plan::make_plan(model_of(submission), asked.request, asked.parallelism);
}

Foreseen::Foreseen(const Submission& submission)
    : model(model_of(submission)),
      plan(plan_of(submission)),
      traffic(plan::predict_traffic(plan, model)) {}

BytesByRole sent_by(const nlohmann::json& actor) {
  return actor.at("tensor_bytes_sent_by_group").get<BytesByRole>();
}

void check_weights(const nlohmann::json& report, const Foreseen& foreseen) {
  for_each_rank(report, foreseen, [&](std::size_t rank, const auto& actor) {
    const auto& own = foreseen.plan.memory.at(rank);
    CHECK(actor.at("weight_bytes") == own.weights + own.second);
  });
}

void check_kv(const nlohmann::json& report, const Foreseen& foreseen) {
  for_each_rank(report, foreseen, [&](std::size_t rank, const auto& actor) {
    CHECK(actor.at("kv_bytes") == foreseen.plan.memory.at(rank).kv);
  });
}

void check_sent(const nlohmann::json& report, const Foreseen& foreseen) {
  for_each_rank(report, foreseen, [&](std::size_t rank, const auto& actor) {
    CHECK(nlohmann::json(sent_by(actor)).dump() ==
          nlohmann::json(foreseen.traffic[rank].sent).dump());
  });
}

void check_sent_by_layer(const nlohmann::json& report, const Foreseen& foreseen) {
  for_each_rank(report, foreseen, [&](std::size_t rank, const auto& actor) {
    CHECK(actor.at("tensor_bytes_sent_by_layer").dump() ==
          nlohmann::json(foreseen.traffic[rank].by_layer).dump());
  });
}

}  // namespace troupe::testing
