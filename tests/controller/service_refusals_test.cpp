#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "base/format.h"
#include "controller/service/client_service.h"
#include "tests/controller/service_fixture.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

// What the service room refuses before a job is made of it.

using namespace troupe;
using troupe::test::ServiceFixture;

TEST_CASE("a job for actors that can hold none is refused for memory, with a remedy") {
  for (const auto& [limit, text] :
       {std::pair<std::uint64_t, std::string>{1000, "1 kB"}, {0, "0 kB"}}) {
    for (const bool automatic : {true, false}) {
      CAPTURE(text);
      CAPTURE(automatic);
      ServiceFixture fixture;
      fixture.gate.open();
      fixture.members.limit_memory(0, limit);
      wire::SubmitJob submission;
      submission.job.model = "a";
      submission.job.request.prompts = {"x"};
      submission.job.parallelism.automatic = automatic;
      std::optional<wire::Failure> failure;
      fixture.client->request(submission, std::chrono::seconds(60),
                              [&](const control::Reply& reply) {
                                failure = reply ? wire::Failure{} : reply.failure();
                              });
      REQUIRE(fixture.until([&] { return failure.has_value(); }));
      CHECK(failure->code == wire::FailureCode::out_of_memory);
      CHECK(failure->what.starts_with("[memory] rank 0 needs "));
      CHECK(failure->what.find("actor 0 may hold " + text + ": no pp, tp") != std::string::npos);
    }
  }
}

TEST_CASE("weights of a type that no actor's device has are refused before anything loads") {
  ServiceFixture fixture;
  fixture.gate.open();
  const auto answer = [&](WeightChoice type) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.request.prompts = {"x"};
    submission.job.request.weight_dtype = type;
    std::string said;
    fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      said = reply ? "accepted" : reply.failure().what;
    });
    REQUIRE(fixture.until([&] { return !said.empty(); }));
    return said;
  };
  CHECK(answer(WeightChoice::int8) == "accepted");
  CHECK(answer(WeightChoice::fp8)
            .starts_with("[weights] fp8 needs a GPU of compute capability 8.9, and "));
  fixture.members.add("there", "cuda:0", /*remote=*/true);
  CHECK(answer(WeightChoice::fp8) == "accepted");
  // An actor that is drained may come back: then the job is computable.
  fixture.members.drain(0);
  CHECK(answer(WeightChoice::int8).ends_with("of which 1 is drained or cannot start"));
}

TEST_CASE("a job that is only to be checked is planned, and none is made") {
  ServiceFixture fixture;
  fixture.gate.open();
  wire::JobAccepted accepted;
  const auto answer = [&](std::int32_t width, std::uint64_t picture_bytes) {
    wire::SubmitJob submission;
    submission.only_check = true;
    submission.job.model = "a";
    auto& request = submission.job.request;
    request.prompts = {"x"};
    request.width = width;
    request.height = 64;
    request.negative_prompt = "y";
    request.guidance_scale = 1;
    // The picture's bytes are not asked for: this client has no channel that they could come by.
    request.init_image_blob = picture_bytes == 0 ? 0 : 7;
    request.init_image_bytes = picture_bytes;
    request.init_image_height = request.init_image_width = 64;
    std::optional<wire::Failure> failure;
    fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      if (reply) accepted = reply.as<wire::JobAccepted>();
      failure = reply ? wire::Failure{} : reply.failure();
    });
    REQUIRE(fixture.until([&] { return failure.has_value(); }));
    return *failure;
  };
  for (const std::uint64_t bytes : {0, 1000}) {
    accepted = {};
    accepted.job = 7;
    CHECK(answer(64, bytes) == wire::Failure{});
    CHECK(accepted.job == 0);
    CHECK(std::ranges::count(
              accepted.warnings,
              "the negative prompt is unused: `guidance_scale` is 1, and above 1 is needed "
              "for it") == 1);
  }
  const auto refused = answer(72, 1000);
  CHECK(refused.field == wire::JobField::width);
  CHECK(refused.what.starts_with("[plan] `width` is 72: this model takes multiples of 16"));
  CHECK(answer(64, 3ull << 30).field == wire::JobField::init_image);
  CHECK(fixture.table.all().empty());
}

TEST_CASE("a picture to start from is looked at before a job is made of it") {
  const auto png = [](std::uint32_t width, std::uint32_t height) {
    std::string bytes("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16);
    for (const auto number : {width, height})
      for (int shift = 24; shift >= 0; shift -= 8)
        bytes.push_back(static_cast<char>(number >> shift & 0xff));
    return bytes + std::string(9, 'x');
  };
  ServiceFixture fixture;
  fixture.gate.open();
  control::BlobStore own;
  control::BlobConnection channel(fixture.io, fixture.blob_options(), own);
  channel.start({}, [](const auto& failure) { FAIL(failure.what); });
  const auto refusal = [&](const std::string& bytes, std::uint64_t size,
                           const std::string& mask = "") {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.request.prompts = {"x"};
    submission.job.request.init_image_blob = own.add(bytes);
    submission.job.request.init_image_bytes = size;
    if (!mask.empty()) submission.job.request.mask_image_blob = own.add(mask);
    submission.job.request.mask_image_bytes = mask.size();
    std::optional<wire::Failure> failure;
    fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      failure = reply ? wire::Failure{} : reply.failure();
    });
    REQUIRE(fixture.until([&] { return failure.has_value(); }));
    CHECK(failure->code == wire::FailureCode::bad_request);
    return failure->what;
  };
  CHECK(refusal("x", (1 << 30) + 1) == "`init_image` has 1073741825 bytes: at most 1073741824");
  CHECK(refusal("no picture", 10) == "`init_image` is no PNG, JPEG or WebP file");
  CHECK(refusal("GIF89a", 6) == "`init_image` is a GIF: PNG, JPEG and WebP are taken");
  CHECK(refusal(png(1, 1).substr(0, 32), 32) ==
        "`init_image` is a damaged PNG: its header is cut off");
  for (const auto& [width, height] : {std::pair<std::uint32_t, std::uint32_t>{8193, 8192},
                                      {1 << 20, 1 << 20},
                                      {0xffffffff, 0xffffffff},
                                      {0, 7}})
    CHECK(refusal(png(width, height), 33) ==
          fmt::format("`init_image` has {} x {} pixels: from 1 to 67108864 are taken", width,
                      height));
  CHECK(refusal(png(1, 1), 33, "no mask") == "`mask_image` is no PNG, JPEG or WebP file");
  CHECK(refusal(png(1, 1), 33, png(0, 1)) ==
        "`mask_image` has 0 x 1 pixels: from 1 to 67108864 are taken");
  const auto padded = png(1, 1) + std::string(17 << 20, 'x');
  CHECK(refusal(padded, padded.size()) ==
        "`init_image` has 17825825 bytes, but a picture of 0 x 0 pixels has at most 16777216: "
        "leave out what is no picture of it (metadata, further frames)");
  CHECK(fixture.blobs.size() == 0);
  CHECK(fixture.table.all().empty());

  // What it takes to decode is known from its header, not from what a client says.
  wire::SubmitJob submission;
  submission.job.model = "a";
  submission.job.request.prompts = {"x"};
  const std::string turned =
      testing::read_all(TROUPE_SOURCE_DIR "/tests/fixtures/pictures/exif6.jpg");
  const std::string moving =
      testing::read_all(TROUPE_SOURCE_DIR "/tests/fixtures/pictures/animated.png");
  submission.job.request.init_image_blob = own.add(turned);
  submission.job.request.init_image_bytes = turned.size();
  submission.job.request.init_image_height = submission.job.request.init_image_width = 1;
  submission.job.request.mask_image_blob = own.add(moving);
  submission.job.request.mask_image_bytes = moving.size();
  std::string said = "nothing";
  fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
    said = reply ? "" : reply.failure().what;
  });
  REQUIRE(fixture.until([&] { return said != "nothing"; }));
  REQUIRE(said == "");
  const auto& plan = fixture.table.all().begin()->second.plan;
  CHECK(plan.request.init_image_height == 7);  // coded as 7 x 5, and lies on its side
  CHECK(plan.request.init_image_width == 5);
  CHECK(std::ranges::count(plan.warnings, "`mask_image` is animated: its first frame is taken") ==
        1);
}

TEST_CASE("what a job begins with is held against its request and a budget before it comes") {
  ServiceFixture fixture;
  fixture.gate.open();
  std::vector<std::string> said;
  const auto submit = [&](wire::ImageRequest request) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.request = std::move(request);
    submission.job.request.prompts = {"x"};
    fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      said.push_back(reply ? "taken" : reply.failure().what);
    });
  };
  // The client has no blob channel: nothing of these will ever come.
  wire::ImageRequest latents;
  latents.height = latents.width = 64;
  latents.init_latents_blob = 7;
  latents.init_latents_bytes = 4ull << 30;
  latents.init_latents_shape = {1, 4, 1 << 14, 1 << 14};
  submit(latents);
  REQUIRE(fixture.until([&] { return said.size() == 1; }));
  CHECK(said.back().starts_with("[plan] `init_latents` have shape [1, 4, 16384, 16384], but "));
  wire::ImageRequest picture;
  picture.init_image_blob = 7;
  picture.init_image_bytes = 500'000'000;
  picture.init_image_height = picture.init_image_width = 8000;
  for (int i = 0; i < 7; ++i)
    submit(picture);
  REQUIRE(fixture.until([&] { return said.size() == 4; }));
  CHECK(said.back() ==
        "the job begins with 500000000 bytes; of this client's jobs 2000000000 are held already, "
        "at most 2147483648 are: try again when some have ended");
  // Others have theirs, up to what all have together.
  auto other = fixture.connect();
  auto third = fixture.connect();
  std::swap(fixture.client, other);
  for (int i = 0; i < 4; ++i)
    submit(picture);
  std::swap(fixture.client, third);
  submit(picture);
  REQUIRE(fixture.until([&] { return said.size() == 5; }));
  CHECK(said.back().starts_with("the job begins with 500000000 bytes; of all jobs' 4000000000"));
  CHECK(fixture.blobs.size() == 0);
}

TEST_CASE("a picture that is longer than its size can be is refused before it comes") {
  ServiceFixture fixture;
  fixture.gate.open();
  const auto answer = [&](std::uint64_t image, std::uint64_t mask) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    auto& request = submission.job.request;
    request.prompts = {"x"};
    request.init_image_blob = 7;
    request.init_image_bytes = image;
    request.init_image_height = request.init_image_width = 64;
    request.mask_image_blob = mask > 0 ? 8 : 0;
    request.mask_image_bytes = mask;
    request.mask_image_height = request.mask_image_width = mask > 0 ? 64 : 0;
    std::string said;
    fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      said = reply ? "taken" : reply.failure().what;
    });
    REQUIRE(fixture.until([&] { return !said.empty(); }));
    return said;
  };
  const std::string begin =
      "`init_image` has 157286400 bytes, but a picture of 64 x 64 pixels has ";
  CHECK(answer(150 << 20, 0).starts_with(begin));
  CHECK(answer(100, 150 << 20).starts_with("`mask_image` has 157286400 bytes, but a picture of "));
}

TEST_CASE("what jobs begin with is bounded for each on whose behalf they come, whoever hands in") {
  ServiceFixture fixture;
  fixture.gate.open();
  std::vector<std::string> said;
  const auto submit = [&](control::Connection& from, const std::string& behalf) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.on_behalf_of = behalf;
    auto& request = submission.job.request;
    request.prompts = {"x"};
    request.init_image_blob = 7;
    request.init_image_bytes = 500'000'000;
    request.init_image_height = request.init_image_width = 8000;
    from.request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      said.push_back(reply ? "taken" : reply.failure().what);
    });
  };
  // Nothing of these will ever come: the clients have no blob channels.
  const auto other = fixture.connect();
  for (const char* behalf : {"alice", "alice", "bob", "alice"})
    submit(*fixture.client, behalf);
  REQUIRE(fixture.until([&] { return said.size() == 1; }));
  submit(*other, "alice");
  REQUIRE(fixture.until([&] { return said.size() == 2; }));
  for (const auto& one : said)
    CHECK(one.starts_with("the job begins with 500000000 bytes; of the jobs of alice 1000000000 "));
}

TEST_CASE("a list tells on whose behalf a job was handed in") {
  ServiceFixture fixture;
  fixture.gate.open();
  wire::SubmitJob submission;
  submission.job.model = "a";
  submission.job.request.prompts = {"x"};
  submission.job.on_behalf_of = "alice";
  bool taken = false;
  fixture.client->request(submission, std::chrono::seconds(60),
                          [&](const control::Reply& reply) { taken = bool(reply); });
  REQUIRE(fixture.until([&] { return taken; }));
  std::vector<wire::JobRow> rows;
  fixture.client->request(
      wire::ListJobs{}, std::chrono::seconds(60),
      [&](const control::Reply& reply) { rows = reply.as<wire::JobList>().jobs; });
  REQUIRE(fixture.until([&] { return !rows.empty(); }));
  CHECK(rows.front().on_behalf_of == "alice");
}

TEST_CASE("less memory leaves less for what jobs begin with") {
  using InputBytes = service::Tools::InputBytes;
  const auto small = InputBytes::within(4ull << 30);
  CHECK(small.all == 1ull << 30);
  CHECK(small.of_client == 512ull << 20);
  CHECK(small.on_same_behalf == 256ull << 20);
  CHECK(InputBytes::within(1ull << 40).all == InputBytes{}.all);
  CHECK(InputBytes::within(1ull << 40).on_same_behalf == InputBytes{}.on_same_behalf);
}

TEST_CASE("a client that goes is no watcher any more of what it has looked at") {
  ServiceFixture fixture;
  fixture.gate.open();
  std::vector<std::string> said;
  fixture.submit(*fixture.client, "a", said);
  REQUIRE(fixture.until([&] { return said.size() == 1; }));
  for (int i = 0; i < 3; ++i) {
    auto other = fixture.connect();
    bool watches = false;
    other->request(wire::WaitJob{1}, std::chrono::seconds(60),
                   [&](const control::Reply& reply) { watches = bool(reply); });
    REQUIRE(fixture.until([&] { return watches; }));
    CHECK(fixture.table.find(1)->client.watchers.size() == 2);
    other->close();
    REQUIRE(fixture.until([&] { return fixture.server.peers() == 1; }));
  }
  CHECK(fixture.until([&] { return fixture.table.find(1)->client.watchers.size() == 1; }));
}

TEST_CASE("a job for more actors than any kind has is refused, with what there is of each") {
  ServiceFixture fixture;
  fixture.gate.open();
  fixture.members.spawned(fixture.members.add("here", "cpu").id, 78, 1);
  for (int i = 0; i < 3; ++i)
    fixture.members.spawned(fixture.members.add("there", "cuda:" + std::to_string(i), true).id,
                            static_cast<std::uint64_t>(100 + i), 1);
  const auto answer = [&](const wire::Parallelism& degrees,
                          WeightChoice weights = WeightChoice::as_computed) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.request.prompts = {"x"};
    submission.job.request.weight_dtype = weights;
    submission.job.parallelism = degrees;
    std::optional<std::string> said;
    fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      said = reply ? "" : reply.failure().what;
    });
    REQUIRE(fixture.until([&] { return said.has_value(); }));
    return *said;
  };
  CHECK(answer({.pp = 3}).empty());
  // Five in all, but of one kind three at most.
  CHECK(answer({.cfg = 2, .pp = 2})
            .find("4 actors of one kind are needed, but the cluster has 2 on cpu and 3 on cuda") !=
        std::string::npos);
  CHECK(answer({.pp = 2}, WeightChoice::int8).empty());
  CHECK(answer({.pp = 3}, WeightChoice::int8).find("cpu alone computes with int8 weights") !=
        std::string::npos);
  wire::Parallelism automatic;
  automatic.automatic = true;
  CHECK(answer(automatic).empty());
  for (const auto& [id, job] : fixture.table.all())
    CHECK(job.plan.degrees.world() <= 3);
}
