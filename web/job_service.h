#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "web/api_error.h"
#include "web/api_keys.h"
#include "web/cluster_link.h"
#include "web/job_board.h"
#include "web/workers.h"

namespace troupe::web {

/// Keeps the paths of a request to the cluster's `own` model ("" = none), `folders` and what lies
/// below them, and sets them to where they lead: a cluster of the same user reads whatever file it
/// is told, and says what is in it. Looks at the file system. Throws ApiError, the same whether a
/// path exists or not.
void keep_paths(Submission& submission, const std::string& own, std::vector<std::string> folders);

/// Thrown for a job that a cluster is asked for now: JobService::when_told says when it has
/// answered.
struct JobSought : ApiError {
  explicit JobSought(std::size_t cluster)
      : ApiError(503, ErrorCode::unreachable, "the cluster is asked for the job: try again"),
        cluster(cluster) {}
  std::size_t cluster;
};

/// The clusters behind the gateway, and the jobs on them. Everything happens on the loop's thread;
/// what waits for a cluster does so on a worker.
class JobService {
 public:
  struct Cluster {
    std::unique_ptr<ClusterLink> link;
    std::optional<ClusterInfo> info;   // the newest; nothing while there is no connection
    std::string why;                   // why there is no connection
    std::string series;                // of its job numbers; "" before the first connection
    bool is_listed = false;            // all of these jobs have been listed
    std::set<std::uint64_t> answered;  // numbers that it has just answered for
    std::vector<std::function<void()>> when_told;  // those that wait for what is sought
    bool is_new = true;                            // the connection: no status has come over it
    bool was_there = false;                        // some status has come
    std::optional<std::chrono::steady_clock::time_point> gone_since;
    std::uint32_t handed_in = 0;  // jobs since the newest status
  };
  using OnSubmitted = std::function<void(std::optional<ApiError>, JobPtr)>;
  using OnResult = std::function<void(Outcome)>;

  /// `on_cluster`: a cluster that there was a connection to is gone, and why; or is back (nothing).
  using OnCluster = std::function<void(const std::string& endpoint, const std::string& why)>;

  /// `allowed_models`: GatewayOptions says which.
  JobService(boost::asio::io_context& io, const std::vector<ClusterLink::Target>& targets,
             OnCluster on_cluster, std::vector<std::string> allowed_models = {});
  ~JobService();

  JobBoard& board() { return board_; }
  const std::vector<Cluster>& clusters() const { return clusters_; }
  /// Called whenever a cluster's status has come.
  void on_status(std::function<void()> action) { on_status_.push_back(std::move(action)); }
  void want_jobs();
  /// Returns a job by its id, or by its number alone where there is one cluster. Throws JobSought
  /// where the cluster may know it, else ApiError: 404, 410 for a job of a series that has ended,
  /// 503 while nobody knows.
  JobPtr job(const std::string& id) const;
  /// Calls `then` when the cluster has answered which of the jobs there are that it is asked for,
  /// or is lost.
  void when_told(const JobSought& sought, std::function<void()> then);

  std::vector<ModelName> models() const;
  /// Job that the same request asks for when the first one has ended.
  struct NextJob {
    ImageRequest request;
    std::string field;  // that asks for it
  };
  /// Hands a job to the cluster that serves the model and has least to do. `submission.model` is
  /// what the client named: an id of `models`, a folder, or "". A job is refused where the cluster
  /// would refuse its next one.
  void submit(Submission submission, std::shared_ptr<const KeyHolder> caller,
              const PictureKind& kind, OnSubmitted then, std::optional<NextJob> next = {});
  /// Cancels the job. `by`: who asks for it, for its cause. Without `then` a cluster that cannot be
  /// told now is told when it can.
  void cancel(const JobPtr& job, std::string by,
              std::function<void(std::optional<Error>)> then = {});
  /// Follows a job that others submitted: its progress and its end come here, too.
  void follow(const JobPtr& job);
  /// Gets the pictures of a job that has succeeded, from the cluster where they are not kept here.
  void with_result(const JobPtr& job, OnResult then);

  /// Calls `action` at one of the loop's next rounds.
  void post(std::function<void()> action) { boost::asio::post(io_, std::move(action)); }
  /// Asks a cluster on a worker; `then` gets the answer on the loop. `asker`: as `work` has it.
  template <class T>
  void ask(std::size_t cluster, std::function<Result<T>(Inspector&)> question,
           std::function<void(Result<T>)> then, const std::string& asker);
  /// Same as `ask`, about one of the cluster's jobs; not where the cluster has begun with other
  /// jobs.
  template <class T>
  void ask_of(const Job& job, std::function<Result<T>(Inspector&)> question,
              std::function<void(Result<T>)> then, const std::string& asker);
  /// Runs `work` on a worker, then `then` on the loop with what it made; what it throws is an
  /// error, code failed. `asker`: whose turn it is, as Workers has it.
  template <class T>
  void work(std::function<Result<T>()> work, std::function<void(Result<T>)> then,
            const std::string& asker = "") {
    work_of(workers_, std::move(work), std::move(then), asker);
  }
  /// The same for bodies of requests. Pictures in them are decoded, whatever memory that takes, so
  /// there are few at a time.
  template <class T>
  void parse(std::function<Result<T>()> work, std::function<void(Result<T>)> then,
             const std::string& asker) {
    work_of(parsers_, std::move(work), std::move(then), asker);
  }

  static double now();

 private:
  using Connection = std::shared_ptr<ClusterLink::Clients>;
  /// Returns the connection to the controller that knows the job.
  Result<Connection> connection_of(const JobKey& job) const;
  template <class T>
  void ask(const Connection& connection, std::function<Result<T>(Inspector&)> question,
           std::function<void(Result<T>)> then, const std::string& asker);
  void connected(std::size_t cluster, const std::string& series);
  void listed(std::size_t cluster, const ClusterLink::Listing& listing);
  /// A submission that is on its way.
  struct Handed {
    JobKey key;  // without a number
    double began = 0;
    Submission submission;
    std::shared_ptr<const KeyHolder> caller;
    PictureKind kind;
    OnSubmitted then;
    std::optional<NextJob> next;
  };
  using HandedPtr = std::shared_ptr<const Handed>;
  /// Hands the job in on a worker, after `work` (null: nothing), which throws what the job is
  /// refused for.
  void hand_in_after(std::function<void()> work, const Connection& connection,
                     const HandedPtr& handed);
  void hand_in(const Connection& connection, const HandedPtr& handed);
  void hand_in_again(const Connection& connection, const HandedPtr& handed);
  void handed_in(const Handed& handed, const Result<std::uint64_t>& number);
  Client::OnProgress progress_of(const JobKey& key);
  std::optional<std::size_t> choose(const std::string& model, std::string& path) const;
  void status(std::size_t cluster, Result<ClusterInfo> info);
  void status_of_new(std::size_t cluster);
  void status_of_gone(std::size_t cluster);
  void told(std::size_t cluster);
  template <class T>
  void work_of(Workers& workers, std::function<Result<T>()> work,
               std::function<void(Result<T>)> then, const std::string& asker);
  void watch(const JobPtr& job, const Connection& connection);
  void ended(const JobKey& key, const Outcome& outcome);

  boost::asio::io_context& io_;
  JobBoard board_;
  RateLimits rates_;
  std::map<std::string, std::size_t> submitting_;  // of a caller, not yet on the board
  std::map<std::string, std::vector<OnResult>> wanted_results_;
  std::vector<std::function<void()>> on_status_;
  OnCluster on_cluster_;
  std::vector<std::string> allowed_models_;
  Workers workers_{8};
  Workers parsers_{2};
  std::vector<Cluster> clusters_;
};

template <class T>
void JobService::work_of(Workers& workers, std::function<Result<T>()> work,
                         std::function<void(Result<T>)> then, const std::string& asker) {
  const auto task = [this, work = std::move(work), then] {
    auto result = std::make_shared<std::optional<Result<T>>>();
    try {
      result->emplace(work());
    } catch (const std::exception& error) {
      result->emplace(Error{ErrorCode::failed, error.what()});
    }
    boost::asio::post(io_, [then, result] { then(std::move(**result)); });
  };
  const bool begun = workers.post(task, asker);
  if (!begun) then(Error{ErrorCode::overloaded, "too much is being done: try again"});
}

template <class T>
void JobService::ask(std::size_t cluster, std::function<Result<T>(Inspector&)> question,
                     std::function<void(Result<T>)> then, const std::string& asker) {
  const auto connection = clusters_.at(cluster).link->connection();
  if (!connection) return then(Error{ErrorCode::unreachable, clusters_[cluster].why});
  ask(connection, std::move(question), std::move(then), asker);
}

template <class T>
void JobService::ask_of(const Job& job, std::function<Result<T>(Inspector&)> question,
                        std::function<void(Result<T>)> then, const std::string& asker) {
  const auto connection = connection_of(job.key);
  if (!connection) return then(connection.error());
  ask(connection.value(), std::move(question), std::move(then), asker);
}

template <class T>
void JobService::ask(const Connection& connection, std::function<Result<T>(Inspector&)> question,
                     std::function<void(Result<T>)> then, const std::string& asker) {
  work<T>([connection, question = std::move(question)] { return question(*connection->inspector); },
          std::move(then), asker);
}

}  // namespace troupe::web
