#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "troupe/client.h"
#include "web/calls.h"

namespace troupe::web {

/// Key of a job. The numbers of a cluster begin again with another series (Inspector::job_series).
struct JobKey {
  std::size_t cluster = 0;   // index
  std::string series;        // as `series_name` makes it
  std::uint64_t number = 0;  // the cluster's own

  /// Returns the job's name outside, NUMBER-SERIES: opaque to clients.
  std::string id() const;
};
/// Eight hexadecimal digits for a series of job numbers.
std::string series_name(const std::string& series);

/// A job as the gateway knows it.
struct Job {
  JobKey key;
  std::string id;  // the key's
  /// Facts about the job; its model is the model's id, its cause in the words of HTTP.
  JobInfo info;
  std::optional<JobPhase> phase = JobPhase::queued;
  double seconds_per_step = 0;     // 0 while unknown
  std::optional<double> timestep;  // of the last completed step
  double created_at = 0;           // seconds since 1970
  double unreachable_since =
      0;  // likewise: what is said above is as old as that; 0 = its cluster is there
  std::vector<std::string> warnings;
  std::string caller;                       // name of the key that it came with; "" = none
  PictureKind kind;                         // kind of file as which its pictures are offered
  bool is_video = false;                    // asked for as OpenAI's videos are
  int frames = 0;                           // likewise: how many were asked for
  bool is_webui = false;                    // asked for as the web UI's pictures are
  bool followed = false;                    // its progress comes here
  bool watched_again = false;               // its result could not be fetched once
  std::string cancelled_by;                 // whoever asked for its end here; "" = nobody
  bool is_interrupted = false;              // likewise, and wants what is there
  bool cancel_owed = false;                 // its cluster is still to be told to cancel it
  int passes = 0;                           // its cluster's lists since it was seen there
  std::optional<Error> error;               // how it ended, if not well
  std::shared_ptr<const JobResult> result;  // while it is kept here
  std::string preview;                      // the newest one, PNG bytes
  int preview_step = 0;

  bool ended() const { return has_ended(info.state); }
};
using JobPtr = std::shared_ptr<Job>;
/// End of a job: with its result, which may be large and is held once.
using Outcome = Result<std::shared_ptr<const JobResult>>;

/// Returns the last name of a model's folder, which is the model's id where no other has it.
std::string model_id(const std::string& folder);

/// A model that can be asked for.
struct ModelName {
  std::string id;
  std::string path;  // the folder
};

/// Names the models of these folders, each once and in their order: by the last name of the folder,
/// by the last two where several folders share that, by the whole path where they share both.
std::vector<ModelName> name_models(const std::vector<std::string>& folders);

/// JOB of docs/http.md.
nlohmann::json to_json(const Job& job);

/// The gateway's memory of jobs: its own, and those that others submitted to its clusters. Bounded
/// in jobs and in the bytes of results. Pure: what happens comes in as calls, `now` in seconds
/// since 1970.
class JobBoard {
 public:
  struct Limits {
    std::size_t jobs = 2000;                            // ended ones go first, the oldest
    std::size_t result_bytes = std::size_t{512} << 20;  // pictures and latents that are kept
  };
  JobBoard() : JobBoard(Limits{}) {}
  explicit JobBoard(Limits limits) : limits_(limits) {}

  enum class What { progress, preview, end };
  /// Callback for one job, until the job is removed.
  using Listener = std::function<void(const Job&, What)>;

  /// Adds a job that was accepted by a cluster.
  JobPtr add(const JobKey& key, double now);
  /// Adds a job that was submitted here and accepted. Its end comes by `end`, with its result: an
  /// end that a list reported before is taken back.
  JobPtr submitted(const JobKey& key, double now);
  void progress(const JobPtr& job, const Progress& progress, double now);
  void end(const JobPtr& job, const Outcome& outcome, double now);
  /// Takes a cluster's list of some of its jobs: unknown jobs are added, others that are not
  /// followed are brought up to date. Jobs that are followed do not end by it.
  void listed(std::size_t cluster, const std::string& series, const std::vector<JobInfo>& jobs,
              double now);
  /// Tells that all of the cluster's jobs were listed since the last call. A job that was not among
  /// them two times is unknown to the cluster; nobody knows how it ended, and it is forgotten here,
  /// too.
  void listed_all(std::size_t cluster, const std::string& series);
  /// Tells that the connection to a cluster is lost, and why, or is there again (""): its jobs that
  /// have not ended say so.
  void set_unreachable(std::size_t cluster, const std::string& why, double now);
  /// Tells that a cluster is gone for good: its jobs that have not ended end with that error. If
  /// the cluster comes back all the same, the jobs that it lists go on.
  void lose(std::size_t cluster, const Error& error, double now);
  /// Begins a series: the cluster's jobs are those of this series from now on. Jobs of other series
  /// that have not ended end with that error.
  void begin_series(std::size_t cluster, const std::string& series, const Error& error, double now);
  /// Keeps a result that was fetched again.
  void keep(const JobPtr& job, std::shared_ptr<const JobResult> result);
  /// Drops the job's result, if it is kept.
  void drop_result(const JobPtr& job);

  JobPtr find(const std::string& id) const;
  /// Returns jobs, newest first, `limit` at most, from behind `before` on ("" = from the newest).
  std::vector<JobPtr> list(const std::string& before, std::size_t limit,
                           const std::function<bool(const Job&)>& wanted) const;
  const std::map<std::string, JobPtr>& all() const { return jobs_; }
  /// Returns the number of jobs that have not ended, and count for this caller.
  std::size_t open_jobs(const std::string& caller) const;

  std::uint64_t listen(const std::string& id, Listener listener);
  void unlisten(const std::string& id, std::uint64_t number);

 private:
  void end_all(const std::function<bool(const Job&)>& which, const Error& error, double now);
  void tell(const JobPtr& job, What what);
  void sort();
  void forget_jobs();
  std::list<JobPtr>::iterator forget(std::list<JobPtr>::iterator at);
  void forget_results();

  Limits limits_;
  std::map<std::string, JobPtr> jobs_;
  std::list<JobPtr> order_;                            // the newest first
  std::list<std::pair<JobPtr, std::size_t>> results_;  // with their bytes, the newest first
  std::size_t result_bytes_ = 0;
  std::map<std::string, std::map<std::uint64_t, Listener>> listeners_;
  std::uint64_t last_listener_ = 0;
};

}  // namespace troupe::web
