#include "web/api.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <filesystem>
#include <thread>

#include "tests/support/doctest.h"
#include "tests/support/hub_cache.h"
#include "tests/support/patience.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "web/cluster_watchers.h"

using namespace troupe;
using namespace troupe::web;

namespace {

class Watcher final : public Reply {
 public:
  void send(Response) override {}
  void begin(Response, std::string) override {}
  void write(Piece piece, bool) override { told.push_back(std::move(piece)); }
  void end() override { has_ended = true; }
  void on_gone(std::function<void()> action) override { gone = std::move(action); }

  std::vector<Piece> told;
  bool has_ended = false;
  std::function<void()> gone;
};

/// The parts of the API, without a cluster.
struct Parts {
  boost::asio::io_context io{1};
  Router router;
  PictureLinks links;
  ClipFiles clips{io, {}, models::clip_file};
  JobService service{io, {}, {}};
  Api api{service, router, links, clips};

  /// Turns the loop until `done`.
  void run_until(const std::function<bool()>& done) {
    io.restart();
    const auto guard = boost::asio::make_work_guard(io);
    const auto until = std::chrono::steady_clock::now() + testing::kPatience;
    while (!done() && std::chrono::steady_clock::now() < until)
      io.run_one_until(until);
    REQUIRE(done());
  }
};

}  // namespace

TEST_CASE("no body is parsed on the loop, however short it is and whatever it says") {
  Parts parts;
  for (const std::string body :
       {R"({"prompt": "a cat"})", R"({"init_\u0069mage": "AAAA"})", "", "--x"}) {
    CAPTURE(body);
    const auto request = std::make_shared<Request>();
    request->body = body;
    request->caller = std::make_shared<const KeyHolder>();
    const auto reply = std::make_shared<Watcher>();
    std::optional<std::thread::id> parsed_by;
    parse_then<std::thread::id>(
        parts.api, request, reply, [] { return std::this_thread::get_id(); },
        [&](std::thread::id by) { parsed_by = by; });
    parts.run_until([&] { return parsed_by.has_value(); });
    CHECK(*parsed_by != std::this_thread::get_id());
    CHECK(request->body.empty());
  }
}

TEST_CASE("however many watch the clusters, each change is written down once for each role") {
  int made = 0, actors = 4;
  double uptime = 0;
  const auto watching = std::make_shared<ClusterWatchers>([&](bool operate) {
    ++made;
    return nlohmann::json{{"actors", actors}, {"uptime_seconds", ++uptime}, {"all", operate}};
  });
  std::vector<std::shared_ptr<Watcher>> watchers;
  for (int i = 0; i < 300; ++i) {
    watchers.push_back(std::make_shared<Watcher>());
    watching->add(watchers.back(), i % 2 == 0, 0);
    CHECK(watchers.back()->told.size() == 1);
  }
  CHECK(made == 2);
  watching->update(1);
  CHECK(made == 4);
  CHECK(watchers[0]->told.size() == 1);  // nothing but its uptime has changed
  actors = 3;
  watching->update(2);
  CHECK(made == 6);
  for (std::size_t i = 0; i < watchers.size(); ++i) {
    CHECK(watchers[i]->told.size() == 2);
    CHECK(watchers[i]->told[1]->find(R"("actors":3)") != std::string::npos);
    CHECK((watchers[i]->told[1]->find(R"("all":true)") != std::string::npos) == (i % 2 == 0));
  }
  watching->update(16);
  CHECK(watchers[0]->told.size() == 2);
  watching->update(17);
  CHECK(watchers[0]->told.size() == 3);
  for (const auto& watcher : watchers)
    watcher->gone();
  CHECK(watching->empty());
  watching->update(40);
  CHECK(made == 10);
}

TEST_CASE("however many watch the pipelines, each event is written down once for each key") {
  int seen = 0;
  const auto watching =
      std::make_shared<PipelineWatchers>(1, [&](nlohmann::json slice, const KeyHolder& caller) {
        ++seen;
        slice["of"] = caller.name;
        return slice;
      });
  const auto alice = std::make_shared<const KeyHolder>(KeyHolder{.name = "alice", .share = {}});
  const auto bob = std::make_shared<const KeyHolder>(KeyHolder{.name = "bob", .share = {}});
  std::vector<std::shared_ptr<Watcher>> watchers;
  const auto add = [&](int count) {
    for (int i = 0; i < count; ++i) {
      watchers.push_back(std::make_shared<Watcher>());
      watching->add(watchers.back(), i % 2 == 0 ? alice : bob);
    }
  };
  add(1);
  CHECK(watchers[0]->told.empty());
  watching->came(0, 20, {{{"end", 9}}, {{"end", 12}}, {{"end", 19}}}, false);
  CHECK(seen == 2);  // the first one is too old
  REQUIRE(watchers[0]->told.size() == 1);
  add(100);
  CHECK(seen == 6);
  for (std::size_t i = 1; i < watchers.size(); ++i) {
    REQUIRE(watchers[i]->told.size() == 1);
    CHECK(watchers[i]->told[0] == watchers[2 - i % 2]->told[0]);
  }
  CHECK(watchers[1]->told[0]->find(R"("of":"alice")") != std::string::npos);
  CHECK(watchers[2]->told[0]->find(R"("of":"bob")") != std::string::npos);
  watching->came(0, 21, {{{"end", 21}}}, false);
  CHECK(seen == 8);
  CHECK(watchers[1]->told.size() == 2);
  add(2);
  CHECK(seen == 14);
  watching->came(0, 1, {{{"end", 1}}}, true);
  watchers.push_back(std::make_shared<Watcher>());
  watching->add(watchers.back(), alice);
  CHECK(watchers.back()->told[0]->find(R"("end":21)") == std::string::npos);
  for (const auto& watcher : watchers)
    watcher->gone();
  CHECK(watching->empty());
}

TEST_CASE("however many watch a job, what happens to it is written down once") {
  Parts parts;
  add_jobs_routes(parts.api);
  const JobPtr job = parts.service.board().submitted({0, "aa", 7}, 1);
  std::vector<std::shared_ptr<Watcher>> watchers;
  for (int i = 0; i < 100; ++i) {
    const auto request = std::make_shared<Request>();
    request->caller = std::make_shared<const KeyHolder>();
    request->params = {"7-aa"};
    watchers.push_back(std::make_shared<Watcher>());
    RequestHead head;
    head.method = "GET";
    REQUIRE(parse_target("/api/v1/jobs/7-aa/events", head));
    const auto match = parts.router.match(head);
    match.route->handler(request, watchers.back());
    CHECK(watchers.back()->told.size() == 1);
  }
  watchers.back()->gone();
  Progress progress;
  progress.phase = JobPhase::denoising;
  progress.preview_png = "png";
  parts.service.board().progress(job, progress, 2);
  const auto are_told = [&](std::size_t pieces) {
    return std::ranges::count_if(watchers,
                                 [&](const auto& one) { return one->told.size() >= pieces; });
  };
  CHECK(are_told(2) == 0);
  parts.run_until([&] { return are_told(2) > 0; });
  CHECK(are_told(3) == 16);  // at one round of the loop
  parts.service.board().end(job, Error{ErrorCode::failed, "it was lost"}, 3);
  parts.run_until([&] { return are_told(4) == 99; });
  for (std::size_t i = 0; i + 1 < watchers.size(); ++i) {
    const auto& told = watchers[i]->told;
    REQUIRE(told.size() == 4);
    for (std::size_t piece = 1; piece < told.size(); ++piece)
      CHECK(told[piece] == watchers[0]->told[piece]);  // one text for all
    CHECK(told[1]->starts_with("event: progress\n"));
    CHECK(told[2]->starts_with("event: preview\n"));
    CHECK(told[3]->starts_with("event: failed\n"));
    CHECK(watchers[i]->has_ended);
  }
  CHECK(watchers.back()->told.size() == 1);
}

TEST_CASE(
    "requests name models, LoRAs and embeddings of allowed folders alone, and learn of no others") {
  const troupe::testing::Scratch scratch;
  std::filesystem::create_directories(scratch.path / "models/a");
  std::filesystem::create_directories(scratch.path / "secret");
  std::filesystem::create_directories(scratch.path / "own");
  scratch.file("secret/there.safetensors", "12345678");
  scratch.file("models/lora.safetensors", "12345678");
  std::filesystem::create_symlink(scratch.path / "secret", scratch.path / "models/link");
  const std::vector<std::string> folders{scratch / "models"};
  const auto refusal = [&](const std::string& model, const std::string& lora) -> std::string {
    Submission submission;
    submission.model = model;
    if (!lora.empty()) submission.request.loras = {{lora, 1}};
    try {
      keep_paths(submission, scratch / "own", folders);
    } catch (const ApiError& error) {
      CHECK(error.status == 400);
      return error.what();
    }
    return "";
  };
  const std::string model = scratch / "models/a";
  CHECK(refusal(model, "") == "");
  CHECK(refusal(model, scratch / "models/lora.safetensors") == "");
  const std::string end =
      ": may not be named here: `--allow-models DIR` of `troupe start`, or of `troupe serve` for "
      "requests over HTTP, says which folders may";
  // The same whether there is such a file or not.
  for (const std::string name :
       {"secret/there.safetensors", "secret/not-there.safetensors", "models/link/there.safetensors",
        "models/../secret/there.safetensors"})
    CHECK(refusal(model, scratch / name) == "loras: " + scratch / name + end);
  Submission words;
  words.request.embeddings = {{scratch / "secret/there.safetensors"}};
  CHECK(troupe::testing::message_of([&] { keep_paths(words, "", folders); }) ==
        "embeddings: " + scratch / "secret/there.safetensors" + end);
  // What lies beside a LoRA says how it is added.
  std::filesystem::create_directories(scratch.path / "models/peft");
  scratch.file("models/peft/lora.safetensors", "12345678");
  scratch.file("secret/adapter_config.json", "{}");
  scratch.file("models/peft/adapter_config.json", "{}");
  const std::string peft = scratch / "models/peft/lora.safetensors";
  CHECK(refusal(model, peft) == "");
  std::filesystem::remove(scratch.path / "models/peft/adapter_config.json");
  std::filesystem::create_symlink(scratch.path / "secret/adapter_config.json",
                                  scratch.path / "models/peft/adapter_config.json");
  CHECK(refusal(model, peft) == "loras: " + peft + end);
  CHECK(refusal(scratch / "secret", "") == "model: " + scratch / "secret" + end);
  CHECK(
      refusal("a/b", "") ==
      "model: a/b: may not be named here: it is no whole path, as the cluster's hosts have it (a "
      "picture names the last part alone), and no model in a Hugging Face cache that may be named");
  CHECK(refusal("/etc/passwd", "") == "model: /etc/passwd" + end);
  // A name of the hub that may not be named is refused as one that is not there.
  const troupe::testing::HubCache cache;
  CHECK(refusal("an-org/a-model", "").substr(std::string("model: an-org/a-model").size()) ==
        refusal("an-org/other", "").substr(std::string("model: an-org/other").size()));
  Submission named;
  named.model = "an-org/a-model";
  keep_paths(named, "", {cache.repository()});
  CHECK(named.model == cache.snapshot());
  // What is handed in is where the path leads.
  Submission submission;
  submission.model = scratch / "models/a/../a";
  keep_paths(submission, "", folders);
  CHECK(submission.model == model);
  // The cluster's own is called as the cluster calls it, and what lies in it may be named.
  std::filesystem::create_directory_symlink("own", scratch.path / "called");
  submission.model = scratch / "called";
  submission.request.loras = {{scratch / "called/lora.safetensors", 1}};
  keep_paths(submission, scratch / "called", folders);
  CHECK(submission.model == scratch / "called");
  CHECK(submission.request.loras[0].path == scratch / "own/lora.safetensors");
}

TEST_CASE("who falls behind what happens to a job loses the oldest of it, and hears its end") {
  Parts parts;
  add_jobs_routes(parts.api);
  const JobPtr job = parts.service.board().submitted({0, "aa", 7}, 1);
  const auto request = std::make_shared<Request>();
  request->caller = std::make_shared<const KeyHolder>();
  request->params = {"7-aa"};
  const auto watcher = std::make_shared<Watcher>();
  RequestHead head;
  head.method = "GET";
  REQUIRE(parse_target("/api/v1/jobs/7-aa/events", head));
  parts.router.match(head).route->handler(request, watcher);
  Progress progress;
  progress.phase = JobPhase::denoising;
  for (progress.step = 1; progress.step <= 100; ++progress.step)
    parts.service.board().progress(job, progress, 2);
  parts.service.board().end(job, Error{ErrorCode::failed, "it was lost"}, 3);
  parts.run_until([&] { return watcher->has_ended; });
  REQUIRE(watcher->told.size() == 17);
  CHECK(watcher->told[1]->find(R"("step":86)") != std::string::npos);
  CHECK(watcher->told[16]->starts_with("event: failed\n"));
}
