#include "tests/support/doctest.h"
#include "transport/json/info_json.h"
#include "web/job_board.h"

using namespace troupe;
using namespace troupe::web;

namespace {

Progress progress_of(JobPhase phase, int step, const std::string& preview = {}) {
  Progress progress;
  progress.phase = phase;
  progress.step = step;
  progress.steps = 8;
  progress.preview_png = preview;
  progress.interim_step = preview.empty() ? 0 : step;
  if (step > 0) progress.timestep = 1000 - step;
  return progress;
}

Outcome result_of(std::size_t bytes) {
  JobResult result;
  result.pictures.push_back({std::string(bytes, 'x')});
  return std::make_shared<const JobResult>(std::move(result));
}

JobInfo info_of(std::uint64_t id, JobState state, const char* prompt, int pictures,
                double seconds) {
  JobInfo info;
  info.id = id;
  info.state = state;
  info.prompt = prompt;
  info.pictures = pictures;
  info.seconds = seconds;
  return info;
}

const std::string kSeries[] = {"aa", "bb"};

JobKey key_of(std::size_t cluster, std::uint64_t number) {
  return {cluster, kSeries[cluster], number};
}

const auto kAll = [](const Job&) { return true; };

}  // namespace

TEST_CASE("a job that is paused has not ended") {
  JobBoard board;
  board.listed(0, kSeries[0], {info_of(1, JobState::paused, "own", 1, 4)}, 104);
  const auto job = board.find("1-aa");
  REQUIRE(job);
  CHECK_FALSE(job->ended());
  board.submitted(key_of(0, 1), 105);
  std::vector<std::string> heard;
  board.listen("1-aa", [&](const Job& seen, JobBoard::What) {
    heard.push_back(to_string(seen.info.state));
  });
  board.listed(0, kSeries[0], {info_of(1, JobState::running, "own", 1, 4)}, 105);
  board.listed(0, kSeries[0], {info_of(1, JobState::paused, "own", 1, 4)}, 105);
  board.listed(0, kSeries[0], {info_of(1, JobState::paused, "own", 1, 4)}, 105);
  CHECK(heard == std::vector<std::string>{"running", "paused"});
  // A list that knows of its end comes before its result, which those who listen wait for.
  board.listed(0, kSeries[0], {info_of(1, JobState::succeeded, "own", 1, 4)}, 106);
  CHECK_FALSE(job->ended());
  board.end(job, result_of(1), 106);
  CHECK(heard == std::vector<std::string>{"running", "paused", "succeeded"});
  CHECK(job->info.state == JobState::succeeded);
}

TEST_CASE("of a job that is cancelled over HTTP it is told by whom") {
  JobBoard board;
  for (const bool is_followed : {true, false}) {
    CAPTURE(is_followed);
    const std::uint64_t number = is_followed ? 1 : 2;
    const JobPtr job = board.add({0, "aa", number}, 1);
    job->cancelled_by = "POST /sdapi/v1/interrupt";
    if (is_followed) {
      board.end(job, Error{ErrorCode::cancelled, "cancelled by a client"}, 2);
      CHECK(job->error->what == "cancelled by POST /sdapi/v1/interrupt");
    } else {
      JobInfo info;
      info.id = number;
      info.state = JobState::cancelled;
      info.cause = "cancelled by a client";
      board.listed(0, "aa", {info}, 2);
    }
    CHECK(job->info.state == JobState::cancelled);
    CHECK(job->info.cause == "cancelled by POST /sdapi/v1/interrupt");
  }
  // One that failed before did not fail for that.
  const JobPtr job = board.add({0, "aa", 3}, 1);
  job->cancelled_by = "POST /sdapi/v1/interrupt";
  board.end(job, Error{ErrorCode::failed, "actor 0 died"}, 2);
  CHECK(job->info.cause == "actor 0 died");
}

TEST_CASE("a job goes its way, and who listens hears of it") {
  JobBoard board;
  const auto job = board.add(key_of(0, 7), 100);
  CHECK(job->id == "7-aa");
  CHECK(board.add(key_of(1, 7), 100)->id == "7-bb");
  CHECK(board.add(key_of(0, 7), 200) == job);
  std::vector<std::string> heard;
  const auto number = board.listen("7-aa", [&](const Job& seen, JobBoard::What what) {
    heard.push_back(to_string(seen.info.state) +
                    (what == JobBoard::What::preview ? " preview" : ""));
  });
  board.progress(job, progress_of(JobPhase::loading, 0), 101);
  CHECK(to_json(*job)["timestep"].is_null());
  for (const char* unknown : {"degrees", "seconds_per_step", "batch"})
    CHECK(to_json(*job)[unknown].is_null());
  board.progress(job, progress_of(JobPhase::denoising, 3, "png"), 102);
  CHECK(to_json(*job)["timestep"] == 997);
  CHECK(job->info.seconds == 2);
  CHECK(job->preview_step == 3);
  board.end(job, result_of(1), 103);
  board.progress(job, progress_of(JobPhase::denoising, 4), 104);
  board.end(job, Error{ErrorCode::failed, "late"}, 105);
  CHECK(heard == std::vector<std::string>{"loading", "running", "running preview", "succeeded"});
  CHECK(job->info.step == 8);
  CHECK(job->preview.empty());
  board.unlisten("7-aa", number);
}

TEST_CASE("HTTP tells all of a job that the command does") {
  JobBoard board;
  JobInfo info = info_of(7, JobState::running, "a cat", 2, 4);
  info.model = "/models/tiny";
  info.steps = 20;
  info.seed = 5;
  info.batch = 9;
  info.with_jobs = {8};
  info.parallelism.pp = 2;
  for (const bool is_followed : {false, true}) {
    CAPTURE(is_followed);
    if (is_followed) {
      board.find("7-aa")->followed = true;
      info.batch = 10;
      info.parallelism.pp = 1;  // it lost actors for good
    }
    board.listed(0, kSeries[0], {info}, 100);
    const auto told = to_json(info), job = to_json(*board.find("7-aa"));
    for (const auto& [name, value] : told.items()) {
      CAPTURE(name);
      REQUIRE(job.contains(name));
      if (name != "id" && name != "model" && name != "pictures") CHECK(job[name] == value);
    }
    CHECK(job["number"] == told["id"]);
    CHECK(job["id"] == "7-aa");
    CHECK(job["model"] == "tiny");
    CHECK(job["pictures"].is_array());
  }
}

TEST_CASE("a listener may remove itself while it is told") {
  JobBoard board;
  const auto job = board.add(key_of(0, 1), 0);
  int told = 0;
  std::uint64_t number = 0;
  number = board.listen("1-aa", [&](const Job&, JobBoard::What) {
    ++told;
    board.unlisten("1-aa", number);
  });
  board.progress(job, progress_of(JobPhase::text, 0), 0);
  board.progress(job, progress_of(JobPhase::text, 0), 0);
  CHECK(told == 1);
}

TEST_CASE("results are kept up to a number of bytes, the newest ones") {
  JobBoard board({.jobs = 100, .result_bytes = 250});
  for (std::uint64_t i = 1; i <= 3; ++i)
    board.end(board.add(key_of(0, i), static_cast<double>(i)), result_of(100), 9);
  CHECK_FALSE(board.find("1-aa")->result);
  CHECK(board.find("2-aa")->result);
  CHECK(board.find("3-aa")->result);
  board.keep(board.find("1-aa"), result_of(1000).value());
  CHECK(board.find("1-aa")->result);  // the newest stays, whatever it has
  CHECK_FALSE(board.find("3-aa")->result);
}

TEST_CASE("a result that is dropped makes room for others") {
  JobBoard board({.jobs = 100, .result_bytes = 250});
  for (std::uint64_t i = 1; i <= 2; ++i)
    board.end(board.add(key_of(0, i), static_cast<double>(i)), result_of(100), 9);
  board.drop_result(board.find("2-aa"));
  CHECK_FALSE(board.find("2-aa")->result);
  board.end(board.add(key_of(0, 3), 3), result_of(100), 9);
  CHECK(board.find("1-aa")->result);
  CHECK(board.find("3-aa")->result);
}

TEST_CASE("ended jobs beyond the limit are forgotten, the oldest first; open ones never") {
  JobBoard board({.jobs = 3, .result_bytes = 1000});
  const auto open = board.add(key_of(0, 1), 1);
  for (std::uint64_t i = 2; i <= 6; ++i)
    board.end(board.add(key_of(0, i), static_cast<double>(i)), result_of(1), 9);
  CHECK(board.find("1-aa") == open);
  CHECK_FALSE(board.find("4-aa"));
  CHECK(board.find("5-aa"));
  CHECK(board.find("6-aa"));
  CHECK(board.all().size() == 3);
}

TEST_CASE("the list: newest first, from behind one on, with the jobs of others") {
  JobBoard board;
  board.add(key_of(0, 1), 100)->followed = true;
  board.listed(
      0, kSeries[0],
      {info_of(1, JobState::failed, "own", 1, 4), info_of(2, JobState::running, "other", 1, 1)},
      104);
  CHECK(board.find("1-aa")->info.state ==
        JobState::queued);  // its own progress says more than the list
  CHECK(board.find("1-aa")->info.seconds == 4);
  CHECK(board.find("2-aa")->info.prompt == "other");
  CHECK(board.find("2-aa")->created_at == 103);
  const auto ids = [&](const std::string& before, std::size_t limit) {
    std::string text;
    for (const auto& job : board.list(before, limit, kAll))
      text += std::to_string(job->key.number) + " ";
    return text;
  };
  CHECK(ids("", 9) == "2 1 ");
  CHECK(ids("", 1) == "2 ");
  CHECK(ids("2-aa", 9) == "1 ");
  board.listed(0, kSeries[0], {info_of(2, JobState::succeeded, "other", 2, 2)}, 105);
  CHECK(board.find("2-aa")->ended());
  CHECK(to_json(*board.find("2-aa")).at("pictures").size() == 2);
}

TEST_CASE("a list that comes before a job is known as ours does not take its end away") {
  JobBoard board;
  board.listed(
      0, kSeries[0],
      {info_of(1, JobState::succeeded, "own", 1, 4), info_of(2, JobState::failed, "own", 1, 4)},
      104);
  for (const std::uint64_t number : {1, 2}) {
    const auto job = board.submitted(key_of(0, number), 100);
    CHECK_FALSE(job->ended());
    std::vector<std::string> heard;
    board.listen(job->id, [&](const Job& seen, JobBoard::What) {
      heard.push_back(to_string(seen.info.state));
    });
    board.listed(0, kSeries[0], {info_of(number, JobState::succeeded, "own", 1, 5)}, 105);
    CHECK(heard.empty());
    board.end(job, result_of(1), 106);
    CHECK(heard == std::vector<std::string>{"succeeded"});
    CHECK(job->result);
    CHECK(board.submitted(key_of(0, number), 107)->ended());
  }
}

TEST_CASE("of a cluster that is gone for good, what is followed ends, and counts no more") {
  JobBoard board;
  const auto job = board.submitted(key_of(0, 1), 100);
  job->caller = "key";
  const auto other = board.submitted(key_of(1, 1), 100);
  board.listed(0, kSeries[0], {info_of(2, JobState::running, "of others", 1, 1)}, 101);
  int ends = 0;
  board.listen("1-aa",
               [&](const Job&, JobBoard::What what) { ends += what == JobBoard::What::end; });
  CHECK(board.open_jobs("key") == 1);
  board.lose(0, {ErrorCode::lost, "gone"}, 700);
  CHECK(ends == 1);
  CHECK(board.open_jobs("key") == 0);
  CHECK(job->error->code == ErrorCode::lost);
  CHECK_FALSE(other->ended());
  CHECK(board.find("2-aa")->error->code == ErrorCode::lost);  // though nobody follows it
  // It comes back after all, with its journal.
  board.listed(0, kSeries[0], {info_of(2, JobState::running, "of others", 1, 700)}, 701);
  CHECK_FALSE(board.find("2-aa")->ended());
  CHECK_FALSE(board.find("2-aa")->error);
}

TEST_CASE("a job whose cluster is gone says so, and since when, also where nobody follows it") {
  JobBoard board;
  const auto ended = board.add(key_of(0, 3), 90);
  board.end(ended, result_of(1), 95);
  const auto other = board.submitted(key_of(1, 1), 100);
  board.listed(0, kSeries[0], {info_of(2, JobState::running, "of others", 1, 1)}, 101);
  const auto job = board.find("2-aa");
  CHECK(to_json(*job).at("unreachable_since").is_null());
  int told = 0;
  board.listen("2-aa", [&](const Job&, JobBoard::What) { ++told; });
  board.set_unreachable(0, "nobody listens", 110);
  CHECK(told == 1);
  CHECK(to_json(*job).at("phase") == "unreachable");
  CHECK(to_json(*job).at("unreachable_since") == 110);
  CHECK(to_json(*job).at("cause") == "nobody listens");
  CHECK(to_json(*job).at("state") == "running");
  CHECK(to_json(*ended).at("unreachable_since").is_null());
  CHECK(to_json(*other).at("unreachable_since").is_null());
  board.set_unreachable(0, "", 120);
  CHECK(to_json(*job).at("phase") == "running");
  CHECK(to_json(*job).at("cause") == "");
}

TEST_CASE("what a cluster remembers no more is forgotten, unless its end is to come here") {
  JobBoard board;
  board.submitted(key_of(0, 1), 100);
  board.listed(0, kSeries[0],
               {info_of(2, JobState::queued, "b", 1, 1), info_of(3, JobState::queued, "c", 1, 1)},
               101);
  board.listed_all(0, kSeries[0]);
  for (int pass = 0; pass < 2; ++pass) {
    REQUIRE(board.find("3-aa"));
    board.listed(0, kSeries[0], {info_of(2, JobState::running, "b", 1, 1)}, 102);
    board.listed_all(0, kSeries[0]);
  }
  CHECK(board.find("1-aa"));
  CHECK(board.find("2-aa"));
  CHECK_FALSE(board.find("3-aa"));
}

TEST_CASE("a cluster that was started anew uses its numbers again, for other jobs") {
  JobBoard board;
  board.end(board.add(key_of(0, 1), 1), result_of(1), 2);
  const auto other = board.add(key_of(1, 1), 1);
  const auto followed = board.submitted(key_of(0, 2), 1);
  const auto seen = board.add(key_of(0, 3), 1);
  board.begin_series(0, "cc", {ErrorCode::lost, "anew"}, 9);
  CHECK(board.find("1-aa")->result);  // its pictures are those of before
  CHECK(followed->error->code == ErrorCode::lost);
  CHECK(seen->info.state == JobState::failed);
  CHECK_FALSE(other->ended());
  const auto stranger = board.add({0, "cc", 1}, 10);
  CHECK(stranger->id == "1-cc");
  CHECK_FALSE(stranger->ended());
  board.begin_series(0, "cc", {ErrorCode::lost, "anew"}, 11);
  CHECK_FALSE(stranger->ended());
}

TEST_CASE("after a gateway's restart a job is still that of the key that handed it in") {
  JobBoard board;
  auto info = info_of(5, JobState::running, "a cat", 1, 10);
  info.on_behalf_of = "alice";
  board.listed(0, "aa", {info, info_of(6, JobState::queued, "a dog", 1, 5)}, 100);
  const auto job = board.find("5-aa");
  REQUIRE(job);
  CHECK(job->caller == "alice");
  CHECK(board.find("6-aa")->caller.empty());
  CHECK(board.open_jobs("alice") == 1);
  CHECK(board.open_jobs("bob") == 0);
}

TEST_CASE("models are named by as much of their folders as tells them apart") {
  const auto ids = [](const std::vector<std::string>& folders) {
    std::vector<std::string> names;
    for (const auto& model : name_models(folders))
      names.push_back(model.id);
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(ids({"/m/sd15", "/m/sdxl/", "/m/sd15"}) == Names{"sd15", "sdxl"});
  CHECK(ids({"/a/model", "/b/model", "/c/flux"}) == Names{"a/model", "b/model", "flux"});
  CHECK(ids({"/c/models--an-org--a-model/snapshots/0123", "/b/a-model"}) ==
        Names{"an-org/a-model", "a-model"});
  CHECK(ids({"/x/a/model", "/y/a/model", "/b/model"}) ==
        Names{"/x/a/model", "/y/a/model", "b/model"});
}
