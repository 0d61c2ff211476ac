
#include <cstring>
#include <limits>

#include "client/cli/files.h"
#include "models/spec/weight_index.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::cli;
using testing::message_of;
using testing::Scratch;

namespace {

std::string safetensors(const std::string& header, const std::string& data) {
  std::uint64_t size = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + data;
}

}  // namespace

TEST_CASE(
    "latents come back as they were written, and the file is what safetensors readers expect") {
  const Scratch scratch;
  const Latents latents{{1, 2, 2, 2}, {0, -1.5f, 3e-30f, 4, 5, 6, 7, 8}};
  write_file(scratch / "l.safetensors", latents_file_bytes(latents));
  const Latents back = read_latents(scratch / "l.safetensors");
  CHECK(back.shape == latents.shape);
  CHECK(back.data == latents.data);
  const auto index = spec::WeightIndex::read_file(scratch / "l.safetensors");
  CHECK(index.tensors().size() == 1);
  CHECK(index.at("latents").begin % 8 == 0);
}

TEST_CASE("bad latents are refused with the file and the reason") {
  const Scratch scratch;
  const auto refusal = [&](const std::string& bytes) {
    write_file(scratch / "bad.safetensors", bytes);
    const std::string message = message_of([&] { read_latents(scratch / "bad.safetensors"); });
    CHECK(message.find("bad.safetensors") != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
    return message;
  };
  const std::string zeros(16, '\0');
  CHECK(refusal(
            safetensors(R"({"x":{"dtype":"F32","shape":[1,1,2,2],"data_offsets":[0,16]}})", zeros))
            .find("no tensor \"latents\"") != std::string::npos);
  CHECK(
      refusal(safetensors(R"({"latents":{"dtype":"F16","shape":[1,2,2,2],"data_offsets":[0,16]}})",
                          zeros))
          .find("not float32") != std::string::npos);
  CHECK(refusal(safetensors(R"({"latents":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
                            zeros))
            .find("[2, 2]") != std::string::npos);
  CHECK_FALSE(
      refusal(safetensors(R"({"latents":{"dtype":"F32","shape":[1,1,2,2],"data_offsets":[0,16]}})",
                          "short"))
          .empty());
  CHECK_FALSE(refusal("").empty());
  CHECK_FALSE(refusal("not a safetensors file at all").empty());
  Latents nan{{1, 1, 2, 2}, {1, 2, std::numeric_limits<float>::quiet_NaN(), 4}};
  CHECK(refusal(latents_file_bytes(nan)).find("not finite at element 2") != std::string::npos);
  CHECK(message_of([&] { read_latents(scratch / "none.safetensors"); }).find("none.safetensors") !=
        std::string::npos);
}
