#pragma once
#include <algorithm>
#include <map>

#include "controller/journal/record.h"

namespace troupe::journal {

/// A store that lasts as long as its process: for simulations.
class MemoryStore final : public Store {
 public:
  std::vector<Record> load() override {
    std::vector<Record> all;
    for (const auto& [id, record] : jobs_)
      all.push_back(record);
    return all;
  }
  PreviousRun previous_run() override { return previous_run_; }
  void apply(const Change& change) override {
    if (change.kind == Change::Kind::forgotten) {
      jobs_.erase(change.job);
      return;
    }
    auto& record = jobs_[change.job];
    record.id = change.job;
    record.facts = change.facts;
    previous_run_.last_job = std::max(previous_run_.last_job, change.job);
    switch (change.kind) {
      case Change::Kind::accepted:
        record.key = change.key;
        record.spec = change.spec;
        record.inputs = change.parts;
        break;
      case Change::Kind::boundary:
        record.boundary = change.parts;
        break;
      case Change::Kind::ended:
        record.report = change.report;
        record.results = change.parts;
        record.inputs.clear();
        record.boundary.clear();
        break;
      default:
        break;
    }
  }
  void keep_bare_end(const Change&) override { throw std::runtime_error("[journal] no room"); }
  void close() override { previous_run_.stopped = true; }

 private:
  std::map<jobs::JobId, Record> jobs_;
  PreviousRun previous_run_{.id = "memory", .last_job = 0, .pid = 1, .stopped = false};
};

}  // namespace troupe::journal
