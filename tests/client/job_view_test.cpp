#include "client/cli/cluster_view.h"

#include <algorithm>

#include "client/cli/json.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::cli;
using testing::has;

namespace {

JobInfo job_of(std::uint64_t id) {
  JobInfo job;
  job.id = id;
  job.state = JobState::failed;
  job.prompt = "a red circle above a blue square to the left of a green triangle";
  job.pictures = 2;
  job.step = 5;
  job.steps = 20;
  job.seconds = 1.5;
  job.cause = "actor 1 died: " + std::string(300, 'x');
  return job;
}

wire::JobRow row_of(std::uint64_t id, std::uint64_t batch) {
  wire::JobRow row;
  row.id = id;
  row.batch = batch;
  return row;
}

}  // namespace

TEST_CASE("who computed with whom follows from the numbers of batches") {
  auto list = client::to_public(wire::JobList{
      {row_of(1, 9), row_of(2, 0), row_of(3, 9), row_of(4, 10), row_of(5, 9), row_of(6, 0)}});
  REQUIRE(list.size() == 6);
  list[1].not_batched = "its step cache decides";
  CHECK(to_json(list[0])["batch"] == nlohmann::json{{"number", 9}, {"with_jobs", {3, 5}}});
  CHECK(to_json(list[1])["batch"].is_null());
  CHECK(to_json(list[1])["not_batched"] == "its step cache decides");
  CHECK(to_json(list[3])["batch"]["with_jobs"] == nlohmann::json::array());
  CHECK(has(job_text(list[0], 0), "\n  batch     9, with jobs 3, 5\n"));
  CHECK(has(job_text(list[1], 0), "\n  batch     none: its step cache decides\n"));
  CHECK(has(job_text(list[5], 0), "\n  batch     -\n"));
}

TEST_CASE("seed and degrees of one job") {
  auto row = row_of(3, 0);
  row.seed = 18'446'744'073'709'551'615u;
  row.degrees.cfg = row.degrees.pp = 2;
  row.degrees.vae = 4;
  auto jobs = client::to_public(wire::JobList{{row, row_of(4, 0)}});
  CHECK(has(job_text(jobs[0], 0),
            "\n  seed      18446744073709551615\n  degrees   cfg 2 × pp 2 × vae 4\n"));
  CHECK(has(job_text(jobs[1], 0), "\n  seed      0\n  degrees   one actor\n"));
  jobs[1].own_seeds = true;
  CHECK(has(job_text(jobs[1], 0), "\n  seed      0, of the first picture: each has its own\n"));
  const auto json = to_json(jobs[0]);
  CHECK(json["seed"] == row.seed);
  CHECK(json["own_seeds"] == false);
  CHECK(json["degrees"] ==
        nlohmann::json{
            {"dp", 1}, {"cfg", 2}, {"pp", 2}, {"ulysses", 1}, {"ring", 1}, {"tp", 1}, {"vae", 4}});
}

TEST_CASE("a table without a limit has every job whole, one within a limit says where more is") {
  auto batched = job_of(4);
  batched.batch = 9;
  const std::vector<JobInfo> jobs{job_of(3), batched};
  const auto whole = jobs_table(jobs, 0, "troupe jobs");
  CHECK(has(whole, jobs[0].prompt));
  CHECK(has(whole, jobs[0].cause));
  CHECK(has(whole, "PRIO"));
  CHECK_FALSE(has(whole, "…"));
  const auto cut = jobs_table(jobs, 80, "troupe jobs");
  CHECK(cut.ends_with("\n… is cut to fit: `troupe jobs ID` shows more of a job\n"));
  CHECK_FALSE(has(cut, "PRIO"));
  CHECK(has(cut, "BATCH"));
  CHECK_FALSE(has(jobs_table({job_of(3)}, 80, "jobs"), "BATCH"));
  auto brief = job_of(3);
  brief.prompt = brief.cause = "x\ny";
  CHECK_FALSE(has(jobs_table({brief}, 80, "jobs"), "cut to fit"));
  CHECK(has(jobs_table({brief}, 0, "jobs"), "x y     x y\n"));
}

TEST_CASE("state and time stay whole beside a cut prompt and cause, figures of no interest go") {
  std::vector<JobInfo> jobs;
  for (std::uint64_t id = 9; id < 12; ++id) {
    auto job = job_of(id);
    job.pictures = 1;
    job.state = JobState::succeeded;
    job.seconds = 754;
    jobs.push_back(job);
  }
  const auto few = jobs_table(jobs, 80, "jobs");
  CHECK_FALSE(has(few, "PICTURES"));
  jobs[1].pictures = 2;
  jobs[1].priority = -10;
  jobs[1].share = "a share of 16 ch";
  jobs[1].batch = 8;
  const auto many = jobs_table(jobs, 80, "jobs");
  for (const auto& text : {few, many}) {
    CAPTURE(text);
    CHECK(has(text, "succeeded"));
    CHECK(has(text, "12 min 34 s"));
    CHECK(has(text, "5/20"));
    CHECK(has(text, "…"));
  }
  CHECK(has(many, "a shar…"));
  CHECK(has(many, "PICTURES"));
  CHECK(has(jobs_table(jobs, 90, "jobs"), "a share of 16 c"));
}

TEST_CASE("a … of the prompt's own, or of the controller's, is not laid to the table") {
  auto job = job_of(3);
  job.prompt = "one … two";
  job.cause = "it died …";
  const auto fits = jobs_table({job}, 80, "jobs");
  CHECK(has(fits, "one … two  it died …\n"));
  CHECK_FALSE(has(fits, "cut to fit"));
  SUBCASE("the prompt") {
    job.prompt = std::string(49, 'p');
  }
  SUBCASE("the share") {
    job.share = std::string(17, 's');
  }
  SUBCASE("the whole") {
    job.cause = std::string(60, 'c');
  }
  CHECK(jobs_table({job}, 90, "jobs").ends_with("`jobs ID` shows more of a job\n"));
  CHECK_FALSE(has(jobs_table({job}, 0, "jobs"), "cut to fit"));
}

TEST_CASE("of one job all is shown, in lines of a terminal's width") {
  const auto job = job_of(3);
  CHECK(job_text(job, 0).ends_with("\n  prompt    " + job.prompt + "\n  cause     " + job.cause +
                                   "\n"));
  const auto narrow = job_text(job, 60);
  std::size_t begin = 0;
  for (auto end = narrow.find('\n'); end != std::string::npos; end = narrow.find('\n', begin)) {
    CHECK(end - begin <= 60);
    begin = end + 1;
  }
  CHECK(std::count(narrow.begin(), narrow.end(), 'x') == 300);
  CHECK(chosen_jobs({job_of(1), job_of(2)}, 2).front().id == 2);
  CHECK(chosen_jobs({job_of(1), job_of(2)}, 0).size() == 2);
  CHECK_THROWS_AS(chosen_jobs({job_of(1)}, 2), CommandError);
}
