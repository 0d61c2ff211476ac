#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "controller/deployments/members.h"
#include "transport/wire/actor_messages.h"

namespace troupe::sim {

class World;

/// Text of the picture that an actor decodes, and of the latents that it leaves: of a job's own
/// seed and picture.
std::string picture_text(std::uint64_t seed, int picture);
std::string latent_text(std::uint64_t seed, int picture);

/// An actor process as the controller sees it: a mailbox that is emptied in order, a second lane
/// for the end of an epoch, tasks that wait for their peers. What it would compute is a line of
/// text: which step of which job its latents are at.
class StageActor {
 public:
  StageActor(World& world, cluster::ActorId id, std::uint64_t incarnation)
      : world_(world), id_(id), incarnation_(incarnation) {}

  cluster::ActorId id() const { return id_; }
  std::uint64_t incarnation() const { return incarnation_; }
  void receive(const std::string& frame);
  /// Tells that a peer of these epochs is gone: tasks that wait for the peer fail.
  void peer_gone(const std::set<std::uint64_t>& epochs) {
    torn_.insert(epochs.begin(), epochs.end());
  }
  /// Epochs whose groups it has, or is about to have.
  const std::set<std::uint64_t>& epochs() const { return epochs_; }

  bool keeps_jobs() const { return !jobs_.empty(); }
  /// Makes the work loop stand still for so many seconds, or for ever.
  void rest(double seconds);
  void stall();
  bool rests() const;
  /// Returns when the work loop was last seen to get on.
  double last_progress() const;

  bool hangs = false;        // neither work nor heartbeats
  double stopped_until = 0;  // no heartbeats either, and nothing is read
  const std::string* blob(std::uint64_t id) const;

 private:
  static constexpr double kLongestPause =
      0.25;  // seconds between two looks whether peers are there

  struct Task {
    std::uint64_t epoch = 0;
    wire::Command command;
  };
  struct Message {
    std::uint64_t correlation = 0;
    std::variant<wire::LoadStage, wire::ConnectGroups, wire::BeginJob, wire::EndJob, wire::Unload,
                 wire::AbortEpoch, Task>
        content;
  };
  struct Job {
    wire::BeginJob begin;
    int next_step = 0;  // all before are done here
    std::deque<std::uint64_t> boundaries = {};
    std::vector<std::uint64_t> blobs = {};
  };

  /// Runs `action` after `seconds`, if the actor lives, and not before it is awake.
  void later(double seconds, std::function<void()> action);
  void act(const std::function<void()>& action);
  void look();  // at the next message, when nothing is in hand
  void done();
  void on(std::uint64_t correlation, const wire::LoadStage& load);
  void on(std::uint64_t correlation, const wire::ConnectGroups& connect);
  void on(std::uint64_t correlation, const wire::BeginJob& begin);
  void on(std::uint64_t correlation, const wire::EndJob& end);
  void on(std::uint64_t correlation, const wire::Unload& unload);
  void on(std::uint64_t correlation, const wire::AbortEpoch& abort);
  void on(std::uint64_t correlation, const Task& task);
  void wait_for_groups(std::uint64_t correlation, const wire::ConnectGroups& connect, double until,
                       double pause);
  void wait_for_task(const Task& task, double pause);
  bool inputs_here(const wire::BeginJob& begin, const wire::Command& command) const;
  void finish_task(const Task& task);
  void fail_task(const Task& task, const std::string& why, bool collateral);
  /// Fails a job whose latents to go on from are gone. The controller lets go of latents when the
  /// job ends, which the end of the epoch, still on its way, will say.
  void fail_begin(const wire::BeginJob& begin);
  void send_on(const wire::BeginJob& begin, const Task& task);
  template <class M>
  void answer(std::uint64_t correlation, const M& message);
  template <class M>
  void tell(const M& message);
  std::uint64_t keep(Job& job, std::string bytes);
  /// Keeps latents at the end of a step; the actor keeps the newest few of a job.
  std::uint64_t keep_boundary(Job& job, std::string bytes);
  void forget(const Job& job);
  void tell_held() const;
  bool over(std::uint64_t epoch) const { return ended_.contains(epoch) || broken_.contains(epoch); }

  World& world_;
  cluster::ActorId id_;
  std::uint64_t incarnation_;
  std::deque<Message> mailbox_;
  bool busy_ = false;
  bool stalls_ = false;  // heartbeats only
  double rests_since_ = 0, rests_until_ = 0;
  std::map<std::uint64_t, std::uint64_t> stages_;    // deployments loaded, and their bytes
  std::map<std::uint64_t, std::uint64_t> encoders_;  // the same of text encoders that stay
  std::set<std::uint64_t> unloaded_;                 // no longer wanted, also while they are loaded
  std::set<std::uint64_t> epochs_;
  std::set<std::uint64_t> torn_;
  std::set<std::uint64_t> ended_;    // by the second lane
  std::set<std::uint64_t> broken_;   // something failed here
  std::set<std::uint64_t> watched_;  // jobs that do not fail by a NaN
  std::map<std::uint64_t, Job> jobs_;
  std::map<std::uint64_t, std::string> blobs_;
};

}  // namespace troupe::sim
