#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// Eight blocks of 17 MB.
constexpr TransformerSize kLarge = {.blocks = 8, .heads = 8, .head_dim = 64};
constexpr double kMegabyte = 1e6;

/// Captions as long as they may be, so that their K,V are what the plan reckons with.
Submission job(const std::string& model, const Parallelism& mix) {
  Submission submission;
  submission.model = model;
  submission.parallelism = mix;
  auto& request = submission.request;
  request.prompts = {"a red circle above a blue square"};
  request.negative_prompt = "a dog beside a cat";
  request.max_sequence_length = 4;
  request.height = 80;
  request.width = 48;
  request.steps = 2;
  return submission;
}

json actors_of(const JobResult& result) {
  return json::parse(result.report).at("actors");
}

/// Bytes that every actor of a stage holds, whatever its shard.
std::uint64_t unsharded(const spec::TransformerSpec& spec, const plan::Plan& plan, int rank) {
  const auto at = mesh::Mesh(plan.degrees).coordinates(rank);
  return 4 * spec::kept_elements(spec,
                                 {.embeds = at.pp == 0, .projects = at.pp == plan.degrees.pp - 1});
}

/// Type of ggml's, its number in files, and the places of the scales (float16) in its blocks.
struct BlockType {
  std::uint32_t number;
  spec::Dtype dtype;
  std::vector<std::size_t> scales;
};

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Writes the transformer of a model's folder anew as a GGUF file: matrices in blocks of random
/// bits, of several types by turns, all else as it is.
void pack_transformer(const std::filesystem::path& folder) {
  static const BlockType kBlocks[] = {{8, spec::Dtype::q8_0, {0}},
                                      {12, spec::Dtype::q4_k, {0, 2}},
                                      {2, spec::Dtype::q4_0, {0}},
                                      {14, spec::Dtype::q6_k, {208}}};
  constexpr std::uint16_t kScale = 0x0a00;  // 0.00018 in float16
  constexpr std::size_t kAlignment = 32;
  const auto file = folder / "transformer/diffusion_pytorch_model.safetensors";
  const auto index = spec::WeightIndex::read_file(file);
  const std::string stored = read_all(file);
  std::string header = "GGUF", data;
  put(header, std::uint32_t{3});
  put(header, static_cast<std::uint64_t>(index.tensors().size()));
  put(header, std::uint64_t{0});
  std::mt19937 random(1);
  std::size_t turn = 0;
  for (const auto& entry : index.tensors()) {
    const bool packs = entry.shape.size() == 2 && entry.shape[1] % 256 == 0;
    const BlockType& type = kBlocks[turn++ % std::size(kBlocks)];
    put(header, static_cast<std::uint64_t>(entry.name.size()));
    header += entry.name;
    put(header, static_cast<std::uint32_t>(entry.shape.size()));
    for (auto side = entry.shape.rbegin(); side != entry.shape.rend(); ++side)
      put(header, static_cast<std::uint64_t>(*side));
    put(header, packs ? type.number : std::uint32_t{0});
    put(header, static_cast<std::uint64_t>(data.size()));
    const auto block = spec::dtype_block(type.dtype);
    for (std::size_t i = 0; packs && i < entry.elements(); i += block.elements) {
      std::string bits(block.bytes, 0);
      for (char& one : bits)
        one = static_cast<char>(random());
      for (const std::size_t place : type.scales)
        std::memcpy(bits.data() + place, &kScale, sizeof kScale);
      data += bits;
    }
    if (!packs) data += stored.substr(entry.begin, entry.bytes());
    data.resize((data.size() + kAlignment - 1) / kAlignment * kAlignment);
  }
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment);
  std::filesystem::remove(file);
  std::ofstream(folder / "transformer/packed.gguf", std::ios::binary) << header << data;
}

}  // namespace

TEST_CASE("weights and memory of the blocks fall as 1 / (pp · tp)") {
  const RandomModel model(kLarge);
  const auto spec = spec::read_model_spec(model.folder()).transformer;
  const double blocks = 4.0 * double(spec::kept_elements(spec, {.last_block = kLarge.blocks}) -
                                     spec::kept_elements(spec, {}));
  REQUIRE(blocks > 130 * kMegabyte);
  const Parallelism mixes[] = {{.pp = 8}, {.pp = 4, .tp = 2}, {.pp = 2, .tp = 4}, {.tp = 8},
                               {.pp = 4}, {.pp = 2, .tp = 2}, {.tp = 4},          {.pp = 2},
                               {.tp = 2}, {.pp = 1, .tp = 1}};
  for (const auto& mix : mixes) {
    const auto name = name_of(mix);
    CAPTURE(name);
    // Actors of its own: others keep the models that they have had.
    SharedCluster fresh(mix.world());
    // What a job costs besides its weights.
    fresh.run(job(odd_model().folder(), {.tp = static_cast<int>(mix.world())}));
    const auto idle = private_memory(fresh);
    const double part = blocks / (mix.pp * mix.tp);
    const auto submission = job(model.folder(), mix);
    const auto plan = plan_of(submission);
    const auto actors = actors_of(fresh.run(submission));
    const auto now = private_memory(fresh);
    double most_above = 0;
    for (int rank = 0; rank < mix.world(); ++rank) {
      CAPTURE(rank);
      const auto held = actors[rank].at("weight_bytes").get<std::uint64_t>();
      // Packed in panels, of which the last may be padded: the output projection is narrow.
      CHECK(held >= plan.memory[rank].weights);
      CHECK(held < plan.memory[rank].weights * 1.01);
      const double own = double(held - unsharded(spec, plan, rank));
      CHECK(own == doctest::Approx(part).epsilon(0.015));
      const auto actor = actors[rank].at("actor").get<std::uint32_t>();
      const double above = now.at(actor) - idle.at(actor);
      CHECK(above < double(held) * 1.05 + 8 * kMegabyte);
      most_above = std::max(most_above, above);
    }
    MESSAGE(name << ": blocks " << part / kMegabyte
                 << " MB an actor, private memory above idle at most " << most_above / kMegabyte
                 << " MB");
  }
}

TEST_CASE("plans know weights and K,V to the byte") {
  struct Way {
    const char* method;
    const char* kv;
    int patches;
    const char* exchange = "stale";
  };
  const Way ways[] = {{"exact", "stale", 1},          {"pipefusion", "stale", 3},
                      {"pipefusion", "predict", 3},   {"distrifusion", "stale", 3},
                      {"distrifusion", "predict", 3}, {"distrifusion", "stale", 3, "naive"}};
  const Parallelism mixes[] = {{},
                               {.dp = 2, .cfg = 2},
                               {.pp = 3},
                               {.ulysses = 3},
                               {.ring = 3},
                               {.tp = 3},
                               {.tp = 7},
                               {.pp = 2, .ulysses = 2, .tp = 2},
                               {.cfg = 2, .ulysses = 2, .ring = 2},
                               {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& mix : mixes) {
    for (const auto& way : ways) {
      auto submission = job(odd_model().folder(), mix);
      auto& request = submission.request;
      request.images_per_prompt = 3;
      request.method = way.method;
      request.kv = way.kv;
      request.num_pipeline_patch = way.patches;
      request.exchange = way.exchange;
      request.dtype = "bfloat16";  // not packed in panels, so that odd widths are exact, too
      CAPTURE(std::string(way.method) + " " + way.kv + " at " + name_of(mix));
      const Foreseen foreseen(submission);
      const auto report = json::parse(shared_cluster().run(submission).report);
      check_weights(report, foreseen);
      check_kv(report, foreseen);
    }
  }
}

TEST_CASE("weights in GGUF's blocks stay packed in memory, as planned") {
  const RandomModel model(kLarge);
  const auto whole = plan_of(job(model.folder(), {})).memory[0].weights;
  pack_transformer(model.folder());
  for (const auto& mix : {Parallelism{}, Parallelism{.tp = 2}}) {
    const auto name = name_of(mix);
    CAPTURE(name);
    SharedCluster fresh(mix.world());
    fresh.run(job(odd_model().folder(), {.tp = static_cast<int>(mix.world())}));
    const auto idle = private_memory(fresh);
    const auto submission = job(model.folder(), mix);
    const auto plan = plan_of(submission);
    const auto actors = actors_of(fresh.run(submission));
    const auto now = private_memory(fresh);
    for (int rank = 0; rank < mix.world(); ++rank) {
      CAPTURE(rank);
      const auto held = actors[rank].at("weight_bytes").get<std::uint64_t>();
      const auto planned = plan.memory[rank].weights;
      CHECK(held >= planned);
      CHECK(held < planned * 1.01 + kMegabyte);  // narrow ones in panels, which may be padded
      const auto actor = actors[rank].at("actor").get<std::uint32_t>();
      // The allocator may keep what was unpacked when the values were looked at, matrix by matrix.
      CHECK(now.at(actor) - idle.at(actor) < double(held) * 1.05 + 20 * kMegabyte);
      CHECK(now.at(actor) - idle.at(actor) < 0.65 * double(whole) / mix.tp);
    }
    CHECK(plan.memory[0].weights < 0.25 * double(whole) / (mix.pp * mix.tp) + 8 * kMegabyte);
    auto exact = submission;
    exact.request.dtype = "bfloat16";
    const Foreseen foreseen(exact);
    check_weights(json::parse(fresh.run(exact).report), foreseen);
  }
}
