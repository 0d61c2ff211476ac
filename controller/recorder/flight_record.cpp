#include "controller/recorder/flight_record.h"

#include <nlohmann/json.hpp>

namespace troupe::recorder {
namespace {

using nlohmann::json;

json unfinished_tasks(const JobNotes& job, Nanoseconds now) {
  json rows = json::array();
  if (job.attempts.empty()) return rows;
  const Attempt& attempt = job.attempts.back();
  for (const TaskNote& note : attempt.notes) {
    if (note.ran) continue;
    rows.push_back({{"task", note.task},
                    {"name", schedule::describe(attempt.graph.tasks.at(note.task))},
                    {"actor", note.actor},
                    {"issued", seconds(note.issued - now)}});
  }
  return rows;
}

}  // namespace

std::string flight_record(const Recorder& recorder, JobId id, JobId run, const std::string& failure,
                          Nanoseconds now) {
  json document = {{"job", id}, {"failure", failure}};
  if (const JobNotes* job = recorder.find(id)) {
    document["prompt"] = job->prompt;
    for (const auto& phase : job->phases)
      document["phases"].push_back(
          {{"phase", to_string(phase.phase)}, {"began", seconds(phase.began - now)}});
  }
  if (const JobNotes* job = recorder.find(run)) {
    if (!job->name.empty()) document["batch"] = job->name;
    for (const auto& attempt : job->attempts) {
      document["epochs"].push_back({{"epoch", attempt.epoch},
                                    {"began", seconds(attempt.began - now)},
                                    {"actors", attempt.actor_of_rank}});
    }
    document["unfinished"] = unfinished_tasks(*job, now);
  }
  document["events"] = json::array();
  for (const Event& event : recorder.events()) {
    json row = {{"at", seconds(event.at - now)}, {"event", to_string(event.kind)}};
    if (event.job != 0) row["job"] = event.job;
    if (!event.name.empty()) row["batch"] = event.name;
    if (event.actor) row["actor"] = *event.actor;
    row["what"] = event.what();
    document["events"].push_back(std::move(row));
  }
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string own_part(const std::string& record, JobId job, JobId run) {
  auto document = json::parse(record);
  auto& events = document.at("events").get_ref<json::array_t&>();
  std::erase_if(events, [&](const json& event) {
    const JobId whose = event.value("job", JobId{0});
    return whose == 0 || (whose != job && whose != run);
  });
  return document.dump();
}

}  // namespace troupe::recorder
