#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "controller/gateway/inspect.h"
#include "controller/recorder/flight_record.h"
#include "transport/control/file_handle.h"

namespace troupe::gateway {
namespace {

constexpr std::size_t kKeptRecords = 16;
constexpr std::size_t kKeptFiles = 256;

/// What the disk may take until the loop goes on without knowing.
constexpr std::chrono::milliseconds kAtOnce{100};

/// Whole or not at all, and for its owner only: prompts are in it. Answers why it cannot be
/// written, or nothing: a full disk costs the record, no more.
std::string write_whole(const std::filesystem::path& path, std::string_view text) {
  auto temporary = path;
  temporary += std::string(".").append(std::to_string(getpid()));
  std::error_code error;
  const auto give_up = [&](const std::error_code& why) {
    std::filesystem::remove(temporary, error);
    return why.message();
  };
  const auto last_error = [] { return std::error_code(errno, std::generic_category()); };
  const control::FileHandle file(
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) return last_error().message();
  while (!text.empty()) {
    const auto written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return give_up(last_error());
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  std::filesystem::rename(temporary, path, error);
  return error ? give_up(std::error_code(error)) : "";
}

}  // namespace

std::string InspectDesk::record_failure(jobs::JobId job, const std::string& failure) {
  const bool together = tools_.runner.jobs_of(job) != std::vector{job};
  return record(job, tools_.runner.run_of(job), failure,
                (together ? "flight-batch-" : "flight-job-") + std::to_string(job) + ".json");
}

std::string InspectDesk::record_hang(cluster::ActorId actor, const std::string& why) {
  const auto current = tools_.runner.dispatcher().current(actor);
  const auto& member = tools_.members.at(actor);
  const jobs::JobId run = current ? current->first : member.jobs.empty() ? 0 : *member.jobs.begin();
  return record(
      run, run, why,
      "flight-actor-" + std::to_string(actor) + "-pid-" + std::to_string(member.pid) + ".json");
}

std::string InspectDesk::record(jobs::JobId job, jobs::JobId run, const std::string& failure,
                                const std::string& file) {
  Failed failed{.job = job,
                .name = {},
                .jobs = tools_.runner.jobs_of(job),
                .failure = failure,
                .file = {},
                .record = std::make_shared<const std::string>(
                    recorder::flight_record(tools_.recorder, job, run, failure, now()))};
  if (job != 0 && failed.jobs != std::vector{job}) failed.name = tools_.runner.name_of(job);
  failed_.push_back(std::move(failed));
  if (failed_.size() > kKeptRecords) failed_.pop_front();
  if (tools_.log_folder.empty()) return "";
  return write(failed_.back(), std::filesystem::path(tools_.log_folder) / file);
}

std::string InspectDesk::write(const Failed& failed, const std::filesystem::path& path) {
  // One wait for all failures of a moment; and where the thread is busy the disk is slow, as is
  // known.
  const auto begun = std::chrono::steady_clock::now();
  const bool prompt = thread_.idle() && begun - waited_ > std::chrono::seconds(1);
  const auto outcome = std::make_shared<std::promise<std::string>>();
  auto error = outcome->get_future();
  const auto work = [this, outcome, path, record = failed.record]() -> SideThread::OnLoop {
    const auto why_not = write_whole(path, *record);
    outcome->set_value(why_not);
    return [this, path, record, why_not] {
      if (!why_not.empty()) {
        if (tools_.note)
          tools_.note("flight record " + path.string() + " cannot be written: " + why_not);
        return;
      }
      written_.push_back(path);
      if (written_.size() > kKeptFiles) {
        std::error_code gone;
        std::filesystem::remove(written_.front(), gone);
        written_.pop_front();
      }
      const auto found = std::ranges::find(failed_, record, &Failed::record);
      if (found != failed_.end()) found->file = path.string();
    };
  };
  if (!thread_.post(work)) return "";
  if (!prompt) return path.string();
  const bool known = error.wait_for(kAtOnce) == std::future_status::ready;
  if (std::chrono::steady_clock::now() - begun > kAtOnce / 10)
    waited_ = std::chrono::steady_clock::now();
  return known && !error.get().empty() ? "" : path.string();
}

std::string InspectDesk::failures(jobs::JobId job, bool own_only) const {
  using nlohmann::json;
  json list = json::array();
  for (const Failed& failed : failed_) {
    if (job != 0 && std::ranges::find(failed.jobs, job) == failed.jobs.end()) continue;
    json row = {{"job", failed.job}, {"failure", failed.failure}};
    if (!failed.name.empty()) row["batch"] = failed.name;
    if (!failed.file.empty()) row["file"] = failed.file;
    if (job != 0)
      row["record"] = json::parse(own_only ? recorder::own_part(*failed.record, job, failed.job)
                                           : *failed.record);
    list.push_back(std::move(row));
  }
  return json{{"failures", list}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace troupe::gateway
