#include <png.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/endian.h"
#include "base/files.h"
#include "client/cli/files.h"
#include "models/image/clip_file.h"
#include "models/image/frames.h"
#include "tests/client/fake_controller.h"
#include "tests/client/run_command.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace std::chrono_literals;
using namespace troupe;
using testing::FakeController;
using testing::Scratch;

namespace {

testing::CommandResult run(const FakeController& controller, const std::string& arguments) {
  return testing::troupe(arguments, "TROUPE_ADDRESS=" + controller.endpoint());
}

/// Accepts every job and ends it with `pictures` pictures, of these bytes or told apart by number.
void make_pictures(FakeController& controller, int pictures, const std::string& bytes_of_all = "") {
  controller.on(
      wire::Kind::submit_job,
      [pictures, bytes_of_all](FakeController& c, control::PeerId peer, const wire::Header& header,
                               std::span<const std::byte> bytes) {
        const auto request = wire::decode<wire::SubmitJob>(bytes).job.request;
        const auto job = c.accept(peer, header);
        for (int step = 1; step <= 4; ++step) {
          std::vector<wire::BlobRef> blobs;
          if (request.progress_content == troupe::ProgressContent::preview)
            blobs.push_back(c.hold("preview", "rough"));
          c.progress(peer, job, step, blobs);
        }
        std::vector<wire::BlobRef> blobs;
        for (int i = 0; i < pictures; ++i)
          blobs.push_back(c.hold(
              "picture", bytes_of_all.empty() ? "picture " + std::to_string(i) : bytes_of_all));
        if (request.want_latents)
          blobs.push_back(c.hold("latents", testing::float_bytes({1, 2}), {1, 1, 1, 2}));
        c.succeed(peer, job, blobs);
      });
}

std::string demo_picture() {
  return testing::read_all(TROUPE_SOURCE_DIR "/tests/fixtures/expected/demo_small.png");
}

/// A clip of noise, which takes many seconds to encode.
std::string slow_clip() {
  constexpr int kWidth = 640, kHeight = 360, kFrames = 240;
  std::vector<std::string> frames;
  std::uint32_t state = 1;
  for (int i = 0; i < kFrames; ++i) {
    if (i >= 8) {
      frames.push_back(frames[static_cast<std::size_t>(i % 8)]);
      continue;
    }
    std::vector<unsigned char> grey;
    for (int at = 0; at < kWidth * kHeight; ++at)
      grey.push_back(static_cast<unsigned char>((state = state * 1103515245 + 12345) >> 28 << 4));
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = kWidth;
    image.height = kHeight;
    image.format = PNG_FORMAT_GRAY;
    std::string png(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
    png_alloc_size_t size = png.size();
    REQUIRE(png_image_write_to_memory(&image, png.data(), &size, 0, grey.data(), 0, nullptr));
    frames.push_back(png.substr(0, size));
  }
  return models::join_frames(frames, {}, models::kFramesPerSecond);
}

/// Returns the seconds that a process has computed for.
double cpu_seconds(pid_t process) {
  std::istringstream stat(testing::read_all("/proc/" + std::to_string(process) + "/stat"));
  std::string word;
  for (int i = 1; i < 14; ++i)
    stat >> word;
  double ticks = 0;
  stat >> ticks;
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

TEST_CASE("submit shows progress, writes its pictures and names them") {
  FakeController controller;
  make_pictures(controller, 2);
  const Scratch scratch;
  const auto result =
      run(controller, "submit --prompt a --n 2 --output " + scratch / "o.png" + " --save-latents " +
                          scratch / "l.safetensors" + " --preview " + scratch / "p.png");
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out == scratch / "o-0.png" + "\n" + scratch / "o-1.png" + "\n");
  CHECK(result.err.find("denoising step 4/4, 0.50 s/step") != std::string::npos);
  CHECK(read_file(scratch / "o-1.png", 100) == "picture 1");
  CHECK(read_file(scratch / "p.png", 100) == "rough");
  CHECK(cli::read_latents(scratch / "l.safetensors").data == std::vector<float>{1, 2});
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path), {}) == 4);
}

#ifdef TROUPE_WITH_EXAMPLES
TEST_CASE("the example in C++ writes its picture, or fails") {
  FakeController controller;
  make_pictures(controller, 1, demo_picture());
  const Scratch scratch;
  const auto example = [&](const std::string& file) {
    return testing::run_command(TROUPE_BINARY_DIR "/bin/troupe_example_submit " +
                                controller.endpoint() + " \"a red circle\" " + file);
  };
  CHECK(example(scratch / "out.png").exit_code == 0);
  CHECK(testing::read_all(scratch / "out.png") == demo_picture());
  for (const std::string& file : {std::string("/dev/full"), scratch / "nowhere/out.png"}) {
    const auto failed = example(file);
    CHECK(failed.exit_code == 1);
    CHECK(failed.err.ends_with(file + " cannot be written\n"));
  }
}
#endif

TEST_CASE("a video becomes what the name of its file says") {
  const std::string frame = demo_picture();
  const std::string video =
      models::join_frames({frame, frame, frame}, {}, models::kFramesPerSecond);
  FakeController controller;
  make_pictures(controller, 1, video);
  const Scratch scratch;
  const auto written = [&](const std::string& name, const std::string& options = "") {
    const auto result = run(controller, "submit --model /elsewhere --prompt a" + options +
                                            " --output " + scratch / name);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out == scratch / name + "\n");
    return read_file(scratch / name, 1 << 20);
  };
  CHECK(written("a.apng") == video);
  CHECK(written("b.mp4").substr(4, 8) == "ftypisom");
  CHECK(written("c.webm").starts_with("\x1a\x45\xdf\xa3"));
  // The time scale of mvhd: that many frames a second.
  const std::string slow = written("d.mp4", " --fps 3");
  CHECK(models::png_number(slow, slow.find("mvhd") + 16) == 3);
}

TEST_CASE("submit --from makes a picture or clip again, of whatever kind its file is") {
  const std::string record =
      R"({"prompt": "a boat", "height": 64, "width": 96, "steps": 7, "seed": 5})";
  const std::string frame = demo_picture();
  const std::string video = models::add_png_text(models::join_frames({frame, frame}, {}, 16),
                                                 {{"parameters", "a boat"}, {"troupe", record}});
  FakeController controller;
  wire::ImageRequest asked;
  controller.on(wire::Kind::submit_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte> bytes) {
                  asked = wire::decode<wire::SubmitJob>(bytes).job.request;
                  c.accept(peer, header);
                });
  const Scratch scratch;
  for (const auto format :
       {models::ClipFormat::apng, models::ClipFormat::mp4, models::ClipFormat::webm}) {
    const auto name = scratch / "a." + to_string(format);
    cli::write_file(name, models::clip_file(video, format));
    const auto result = run(controller, "submit --detach --seed 6 --from " + name);
    INFO(name << ": " << result.err);
    CHECK(result.exit_code == 0);
    CHECK(asked.prompts == std::vector<std::string>{"a boat"});
    CHECK(asked.width == 96);
    CHECK(asked.steps == 7);
    CHECK(asked.seed == 6);
    CHECK(run(controller, "inspect " + name).out.find("parameters: a boat\n") != std::string::npos);
    asked = {};
  }
  // A model of another name is told of.
  controller.on(wire::Kind::get_status, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::ClusterStatus status;
    status.model = "/models/pixart";
    c.server().reply(peer, header, status);
  });
  const auto told = [&](const std::string& model, const std::string& more) {
    const std::string with =
        record.substr(0, record.size() - 1) + ", \"model\": \"" + model + "\"}";
    cli::write_file(scratch / "c.png",
                    models::add_png_text(frame, {{"parameters", "a boat"}, {"troupe", with}}));
    return run(controller, "submit --detach --from " + scratch / "c.png" + more).err;
  };
  CHECK(told("pixart", "") == "");
  CHECK(told("sd15", "") == "troupe: warning: " + scratch / "c.png" +
                                " was made with the model sd15, and this is with pixart; --model "
                                "names another\n");
  CHECK(told("an-org/a-model", " --model an-org/a-model") == "");
  // As many pictures are needed as there were.
  cli::write_file(scratch / "d.png",
                  models::add_png_text(frame, {{"troupe", record.substr(0, record.size() - 1) +
                                                              ", \"images\": 2}"}}));
  const std::string edit = "submit --detach --from " + scratch / "d.png";
  const std::string one = " --image " + scratch / "c.png";
  CHECK(run(controller, edit).err.find("was made with --image") != std::string::npos);
  CHECK(run(controller, edit + one).err.find("was made with 2 pictures by --image, not with 1") !=
        std::string::npos);
  CHECK(run(controller, edit + one + one).exit_code == 0);
  CHECK(asked.images.size() == 2);
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    cli::write_file(scratch / "b.mp4", bytes);
    const auto result = run(controller, "submit --detach --from " + scratch / "b.mp4");
    CHECK(result.exit_code == 1);
    CHECK(result.err.find(why) != std::string::npos);
  };
  const std::string file = models::clip_file(video, models::ClipFormat::mp4);
  refused(file.substr(0, file.size() - 9), "ends outside of what it is in");
  refused(models::clip_file(frame, models::ClipFormat::mp4), "it is none of ours");
  refused("RIFF", "neither a PNG nor an MP4 or WebM file");
}

TEST_CASE("what is no video, or cannot be one, is said and not written") {
  const std::string picture = demo_picture();
  FakeController controller;
  make_pictures(controller, 1, picture);
  const Scratch scratch;
  const auto of_picture =
      run(controller, "submit --model /elsewhere --prompt a --output " + scratch / "a.mp4");
  CHECK(of_picture.exit_code == 1);
  CHECK(of_picture.err.find("a.mp4 is for videos, and job 1 made a picture") != std::string::npos);
  const std::string tiny =
      picture.substr(0, 16) + big_endian(8, 4) + big_endian(8, 4) + picture.substr(24);
  FakeController other;
  make_pictures(other, 1, models::join_frames({tiny, tiny}, {}, models::kFramesPerSecond));
  const auto too_small =
      run(other, "submit --model /elsewhere --prompt a --output " + scratch / "a.mp4");
  CHECK(too_small.exit_code == 1);
  CHECK(too_small.err.find("a.mp4: 8 x 8 pixels: H.264 takes 15 to 8688 a side") !=
        std::string::npos);
  CHECK(too_small.err.find("the cluster still has it") != std::string::npos);
  CHECK(std::filesystem::is_empty(scratch.path));
}

TEST_CASE("submit --json --quiet: the report with the outputs, nothing else") {
  FakeController controller;
  make_pictures(controller, 1);
  const Scratch scratch;
  const auto result =
      run(controller, "submit --quiet --json --prompt a --output " + scratch / "o.png");
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(result.out.find("\"seed\": 7") != std::string::npos);
  CHECK(result.out.find(scratch / "o.png") != std::string::npos);
  CHECK(result.out.find('{') == 0);
  CHECK(result.out.substr(result.out.size() - 2) == "}\n");
}

TEST_CASE("a failed job: exit code 1, its cause in one line, no file") {
  FakeController controller;
  controller.on(wire::Kind::submit_job, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    c.fail(peer, c.accept(peer, header),
           {wire::FailureCode::internal, "actor 1 (pid 5) was killed\nby signal 9"});
  });
  const Scratch scratch;
  const auto result = run(controller, "submit --prompt a --output " + scratch / "o.png");
  CHECK(result.exit_code == 1);
  CHECK(result.err == "troupe: job 1: actor 1 (pid 5) was killed by signal 9\n");
  CHECK(std::filesystem::is_empty(scratch.path));
}

TEST_CASE("what a cluster finds wrong with a model's folder stands under --model") {
  FakeController controller;
  controller.on(
      wire::Kind::submit_job, [](FakeController& c, control::PeerId peer,
                                 const wire::Header& header, std::span<const std::byte> bytes) {
        const auto model = wire::decode<wire::SubmitJob>(bytes).job.model;
        c.server().reply(
            peer, header,
            wire::Failure{wire::FailureCode::bad_request,
                          "[read_model] " + model + ": no such folder", wire::JobField::model});
      });
  for (const std::string how : {" --output o.png", " --detach"}) {
    const auto none = run(controller, "submit --prompt a --model /nothere" + how);
    CHECK(none.exit_code == 1);
    CHECK(none.err == "troupe: --model /nothere: no such folder\n");
    const auto hub = run(controller, "submit --prompt a --model some-org/a-model" + how);
    // The name goes to the cluster as it stands: its machine has the cache.
    CHECK(hub.err == "troupe: --model some-org/a-model: no such folder\n");
  }
}

TEST_CASE("--timeout cancels the job") {
  FakeController controller;
  std::atomic<int> cancelled = 0;
  controller.on(wire::Kind::cancel_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte>) {
                  ++cancelled;
                  c.server().reply(peer, header, wire::Done{});
                  c.fail(peer, 1, {}, JobState::cancelled);
                });
  const Scratch scratch;
  const auto result =
      run(controller, "submit --prompt a --timeout 0.3 --output " + scratch / "o.png");
  CHECK(result.exit_code == 1);
  CHECK(result.err ==
        "not done within the --timeout of 0.30 s: cancelling… (Ctrl-C: at once)\n"
        "troupe: job 1 was cancelled: not done within the --timeout of 0.30 s\n");
  CHECK(cancelled == 1);
}

TEST_CASE("Ctrl-C cancels the job: 130; SIGTERM: 143") {
  for (const int signal : {SIGINT, SIGTERM}) {
    FakeController controller;
    std::atomic<int> submitted = 0;
    control::PeerId owner = 0;
    controller.on(wire::Kind::submit_job,
                  [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                      std::span<const std::byte>) {
                    owner = peer;
                    c.accept(peer, header);
                    ++submitted;
                  });
    controller.on(wire::Kind::cancel_job,
                  [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                      std::span<const std::byte>) {
                    c.server().reply(peer, header, wire::Done{});
                    c.fail(owner, 1, {}, JobState::cancelled);
                  });
    const Scratch scratch;
    const Scratch errors;
    const std::string error_path = errors / "err";
    const std::string output = scratch / "o.png";
    const std::string endpoint = controller.endpoint();
    const pid_t child = fork();
    if (child == 0) {
      ::freopen(error_path.c_str(), "w", stderr);
      execl(TROUPE_BINARY_DIR "/bin/troupe", "troupe", "submit", "--prompt", "a", "--output",
            output.c_str(), "--connect", endpoint.c_str(), nullptr);
      _exit(99);
    }
    for (int i = 0; i < 6000 && submitted == 0; ++i)
      std::this_thread::sleep_for(10ms);
    REQUIRE(submitted == 1);
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + signal);
    CHECK(read_file(error_path, 1 << 16).find("troupe: interrupted: job 1 was cancelled\n") !=
          std::string::npos);
    CHECK(std::filesystem::is_empty(scratch.path));
  }
}

TEST_CASE("a signal ends a command whose controller takes its connection and says nothing") {
  const std::vector<std::vector<std::string>> commands = {
      {"submit", "--prompt", "a", "--output"}, {"wait", "3", "--output"}, {"serve", "--http"}};
  for (auto words : commands) {
    for (const int signal : {SIGINT, SIGTERM}) {
      CAPTURE(words.front());
      const Scratch scratch, errors;
      boost::asio::io_context io;
      boost::asio::ip::tcp::acceptor silent(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
      const std::string endpoint =
          "tcp://127.0.0.1:" + std::to_string(silent.local_endpoint().port());
      const bool serves = words.front() == "serve";
      auto all = words;
      all.push_back(serves ? "127.0.0.1:0" : scratch / "o.png");
      all.insert(all.end(), {"--keys", "none", "--connect", endpoint});
      std::vector<char*> arguments = {const_cast<char*>("troupe")};
      for (auto& word : all)
        arguments.push_back(word.data());
      arguments.push_back(nullptr);
      const std::string out_path = errors / "out", error_path = errors / "err";
      const pid_t child = fork();
      if (child == 0) {
        ::freopen(out_path.c_str(), "w", stdout);
        ::freopen(error_path.c_str(), "w", stderr);
        execv(TROUPE_BINARY_DIR "/bin/troupe", arguments.data());
        _exit(99);
      }
      const auto taken = silent.accept();
      kill(child, signal);
      int status = 0;
      waitpid(child, &status, 0);
      const auto said = read_file(error_path, 1 << 16);
      INFO(said);
      REQUIRE(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == (serves ? 0 : 128 + signal));
      CHECK(said == (serves ? "" : "troupe: interrupted while connecting to " + endpoint + "\n"));
      CHECK(read_file(out_path, 1 << 16).empty());
    }
  }
}

TEST_CASE("a second Ctrl-C does not wait for the job's end, and says what it did") {
  FakeController controller;
  std::atomic<int> submitted = 0, told = 0;
  controller.on(wire::Kind::submit_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte>) {
                  c.accept(peer, header);
                  ++submitted;
                });
  controller.on(
      wire::Kind::cancel_job, [&](FakeController& c, control::PeerId peer,
                                  const wire::Header& header, std::span<const std::byte>) {
        ++told;
        c.server().reply(peer, header, wire::Done{});  // and its actors do not come to an end
      });
  const Scratch scratch;
  const Scratch errors;
  const std::string error_path = errors / "err";
  const std::string output = scratch / "o.png";
  const std::string endpoint = controller.endpoint();
  const pid_t child = fork();
  if (child == 0) {
    ::freopen(error_path.c_str(), "w", stderr);
    execl(TROUPE_BINARY_DIR "/bin/troupe", "troupe", "submit", "--prompt", "a", "--output",
          output.c_str(), "--connect", endpoint.c_str(), nullptr);
    _exit(99);
  }
  const auto until = [](const auto& holds) {
    for (int i = 0; i < 6000 && !holds(); ++i)
      std::this_thread::sleep_for(10ms);
    return holds();
  };
  const auto said = [&](const std::string& what) {
    return read_file(error_path, 1 << 16).find(what) != std::string::npos;
  };
  REQUIRE(until([&] { return submitted == 1; }));
  kill(child, SIGINT);
  CHECK(until([&] { return said("cancelling… (Ctrl-C again: at once)\n"); }));
  CHECK(told == 1);
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  CHECK(said("troupe: interrupted: job 1 was told to stop, and nobody waited for it\n"));
  CHECK(told == 1);
}

TEST_CASE("Ctrl-C ends the encoding of a clip at once, and says where the clip is") {
  FakeController controller;
  make_pictures(controller, 1, slow_clip());
  const std::string endpoint = controller.endpoint();
  for (const std::string format : {"mp4", "webm"}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      const Scratch scratch, errors;
      const std::string error_path = errors / "err", output = scratch / "a." + format;
      const pid_t child = fork();
      if (child == 0) {
        ::freopen(error_path.c_str(), "w", stderr);
        execl(TROUPE_BINARY_DIR "/bin/troupe", "troupe", "submit", "--model", "/elsewhere",
              "--prompt", "a", "--output", output.c_str(), "--connect", endpoint.c_str(), nullptr);
        _exit(99);
      }
      for (int i = 0; i < 6000 && cpu_seconds(child) < 0.8; ++i)
        std::this_thread::sleep_for(10ms);
      kill(child, signal);
      int status = 0;
      waitpid(child, &status, 0);
      const auto said = read_file(error_path, 1 << 16);
      INFO(said);
      REQUIRE(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 128 + signal);
      CHECK(said.find("troupe: interrupted: " + output +
                      ": the encoding was stopped; the cluster "
                      "still has it: `troupe wait ") != std::string::npos);
      CHECK(std::filesystem::is_empty(scratch.path));
    }
  }
}

TEST_CASE("submit --detach prints the number, wait fetches the pictures and leaves the job alone") {
  FakeController controller;
  std::atomic<bool> detached = false;
  controller.on(wire::Kind::submit_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte> bytes) {
                  detached = wire::decode<wire::SubmitJob>(bytes).detached;
                  c.accept(peer, header);
                });
  const auto submitted = run(controller, "submit --prompt a --detach");
  CHECK(submitted.out == "1\n");
  CHECK(detached);

  std::atomic<int> cancelled = 0;
  controller.on(wire::Kind::cancel_job, [&](FakeController&, control::PeerId, const wire::Header&,
                                            std::span<const std::byte>) { ++cancelled; });
  const Scratch scratch;
  const auto early = run(controller, "wait 1 --timeout 0.3 --output " + scratch / "o.png");
  CHECK(early.exit_code == 1);
  CHECK(early.err.find("it goes on") != std::string::npos);
  CHECK(cancelled == 0);

  controller.on(wire::Kind::wait_job, [](FakeController& c, control::PeerId peer,
                                         const wire::Header& header, std::span<const std::byte>) {
    c.server().reply(peer, header, wire::Done{});
    c.succeed(peer, 1, {c.hold("picture", "png")});
  });
  cli::write_file(scratch / "o.png", "an older picture");  // is replaced, as by run
  const auto result = run(controller, "wait 1 --output " + scratch / "o.png");
  CHECK(result.exit_code == 0);
  CHECK(read_file(scratch / "o.png", 100) == "png");
}

TEST_CASE("submit --detach: a warning that came with the number is told beside it") {
  FakeController controller;
  controller.on(wire::Kind::submit_job, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::JobAccepted accepted;
    accepted.job = 12;
    accepted.queue_position = 2;
    accepted.warnings = {"--may-batch has no effect: its step cache decides"};
    c.server().reply(peer, header, accepted);
  });
  const std::string warning =
      "troupe: warning: --may-batch has no effect: its step cache decides\n";
  const auto plain = run(controller, "submit --prompt a --detach");
  CHECK(plain.exit_code == 0);
  CHECK(plain.out == "12\n");
  CHECK(plain.err == warning);
  const auto json = run(controller, "submit --prompt a --detach --json");
  CHECK(json.out == "{\n  \"job\": 12\n}\n");
  CHECK(json.err == warning);
}

TEST_CASE("status and jobs, for people and for programs") {
  FakeController controller;
  controller.on(wire::Kind::list_jobs, [](FakeController& c, control::PeerId peer,
                                          const wire::Header& header, std::span<const std::byte>) {
    wire::JobList list;
    list.jobs.push_back({3, JobState::failed, "a cat", 2, 5, 20, 1.5, "actor 1 died"});
    c.server().reply(peer, header, list);
  });
  controller.on(wire::Kind::get_status, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::ClusterStatus status;
    status.version = "0.1.0";
    status.host = "hal";
    status.pid = 77;
    wire::ActorRow actor;
    actor.id = 2;
    actor.state = ActorState::busy;
    actor.device = "cuda:2";
    actor.groups = {{"cfg", {0, 2}, 1}, {"pp", {2, 3}, 0}};
    actor.doing = "job 3 step 5";
    actor.memory_bytes = 812'000'000;
    status.actors.push_back(actor);
    status.recent_failures = {"job 3: actor 1 died"};
    c.server().reply(peer, header, status);
  });
  const auto status = run(controller, "status");
  CHECK(status.exit_code == 0);
  for (const char* word : {"hal", "77", "busy", "cuda:2", "cfg 1/2 [0 2], pp 0/2 [2 3]",
                           "job 3 step 5", "812 MB", "job 3: actor 1 died"}) {
    INFO(word);
    CHECK(status.out.find(word) != std::string::npos);
  }
  const auto told = nlohmann::json::parse(run(controller, "status --json").out);
  CHECK(told["actors"][0]["local_rank"] == 0);
  CHECK(told["hosts"] == nlohmann::json::parse(R"([
    {"name": "", "actors": 1, "ready": 1, "restarts": 0, "memory_bytes": 812000000,
     "devices": ["cuda:2"], "controller": false},
    {"name": "hal", "actors": 0, "ready": 0, "restarts": 0, "memory_bytes": null,
     "devices": [], "controller": true}])"));
  const auto jobs = run(controller, "jobs");
  for (const char* word : {"3", "failed", "5/20", "a cat", "actor 1 died"}) {
    CHECK(jobs.out.find(word) != std::string::npos);
  }
  CHECK(run(controller, "jobs --json").out.find("\"cause\": \"actor 1 died\"") !=
        std::string::npos);
  const auto one = run(controller, "jobs 3");
  CHECK(one.out.starts_with("job 3\n  state     failed\n"));
  CHECK(one.out.ends_with("\n  cause     actor 1 died\n"));
  const auto other = run(controller, "jobs 4 --json");
  CHECK(other.exit_code == 1);
  CHECK(other.out.find("\"not_found\"") != std::string::npos);
  CHECK(other.err == "troupe: job 4 is not known here\n");
  CHECK(run(controller, "cancel 3").out == "job 3: as you wish\n");
}

TEST_CASE("status --watch says it again until the cluster ends") {
  FakeController controller;
  std::atomic<int> asked = 0;
  controller.on(
      wire::Kind::get_status, [&](FakeController& c, control::PeerId peer,
                                  const wire::Header& header, std::span<const std::byte>) {
        if (++asked < 3) {
          c.server().reply(peer, header, wire::ClusterStatus{});
        } else {
          c.server().reply(peer, header, wire::Failure{wire::FailureCode::refused, "it is over"});
        }
      });
  const auto watched = run(controller, "status --watch 0.1");
  CHECK(watched.exit_code == 1);
  CHECK(watched.err == "troupe: it is over\n");
  CHECK(asked == 3);
  const auto second = watched.out.find("\nCluster\n");
  CHECK(watched.out.starts_with("Cluster\n"));
  CHECK(second != std::string::npos);
  CHECK(watched.out.find("\nCluster\n", second + 1) == std::string::npos);
  const auto json = run(controller, "status --watch 1 --json");
  CHECK(json.exit_code == 2);
  CHECK(json.err.find("--watch does not go with --json") != std::string::npos);
}
