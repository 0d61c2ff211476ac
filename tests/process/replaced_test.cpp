#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/models.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;

/// Replaces the file by the same but for the signs of its last values: same size, same time.
void change_signs(const fs::path& weights) {
  std::string changed = read_all(weights);
  for (std::size_t at = changed.size() - 1; at > changed.size() - 4000; at -= 4)
    changed[at] = static_cast<char>(changed[at] ^ 0x80);
  const fs::path beside = weights.string() + ".new";
  std::ofstream(beside, std::ios::binary) << changed;
  fs::last_write_time(beside, fs::last_write_time(weights));
  fs::rename(beside, weights);
}

}  // namespace

TEST_CASE("a checkpoint that is replaced in place is loaded anew, and one that stays is not") {
  const Scratch scratch;
  const fs::path model = scratch.path / "model";
  fs::copy(checkpoint("tiny-pixart"), model, fs::copy_options::recursive);
  const fs::path weights = model / "transformer/diffusion_pytorch_model.safetensors";
  REQUIRE(fs::exists(weights));
  FaultCluster cluster(actors(1));
  auto job = tiny_job();
  job.model = model.string();

  const auto first = cluster.run(job);
  CHECK(cluster.run(job).latents->data == first.latents->data);
  change_signs(weights);
  CHECK(cluster.run(job).latents->data != first.latents->data);
  change_signs(weights);
  CHECK(cluster.run(job).latents->data == first.latents->data);
  CHECK(cluster.restarts() == 0);
}
