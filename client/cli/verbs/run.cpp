#include <algorithm>
#include <filesystem>

#include "client/cli/actor_options.h"
#include "client/cli/files.h"
#include "client/cli/follow.h"
#include "client/cli/named_model.h"
#include "client/cli/options.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/cli/verbs/start.h"
#include "client/convert.h"
#include "controller/app/cluster.h"
#include "controller/deployments/device_kinds.h"
#include "controller/hosts/actor_pins.h"
#include "controller/hosts/affinity.h"
#include "controller/plan/plan.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace {

class RunVerb : public Verb {
 public:
  explicit RunVerb(Options& options) : Verb(options) {
    add_request_options(*app_, request_);
    add_parts_options(*app_, parts_);
    add_degree_options(*app_, request_);
    add_elastic_option(*app_, request_);
    add_device_option(*app_, options_.device)->group(kUsualOptions);
    add_threads_option(*app_, options_.threads_per_actor);
    add_pin_option(*app_, options_.pin);
    add_cuda_graphs_option(*app_, options_.cuda_graphs);
    add_actors_per_gpu_option(*app_, options_.actors_per_gpu);
    app_->add_option(
            "--actors", actors_,
            "With --parallel auto: actors to start, of which it picks; default: as many as "
            "there are GPUs, or as cores allow, 16 at most")
        ->check(whole(1, 1024))
        ->type_name("N")
        ->group(kUsualOptions);
    add_task_deadline_option(*app_, options_.task_deadline);
    add_keep_logs_option(*app_, options_.log_folder);
    add_result_options(*app_, results_);
    add_preview_options(*app_, results_);
    set_footer(
        "dp x cfg x pp x ulysses x ring x tp actors are started and ended with the job, with "
        "--parallel auto --actors. Ctrl-C cancels it and leaves nothing behind, a second "
        "one does so at once.",
        {"troupe run Tongyi-MAI/Z-Image-Turbo \"a lighthouse\" --fetch",
         "troupe run --model DIR --prompt \"a red circle above a blue square\"",
         "troupe run --model DIR --prompt \"a cat\" --cfg 2 --pp 2 --patches 4 --warmup 1",
         "troupe run --model DIR --prompt \"cat\" --prompt \"dog\" --dp 2 --output {}.png"},
        "commands.md#run");
  }

  void check() override {
    settled_ = request_;
    wanted_ = results_;
    wanted_.owns_actors = true;
    take_prompts(settled_, "run");
    if (settled_.model.empty()) throw UsageError("run needs --model");
    settle(settled_);
    if (app_->count("--actors") > 0 && !settled_.parallelism.automatic)
      throw UsageError("--actors goes with --parallel auto: else the degrees say how many");
    check_cuda_graphs(options_.cuda_graphs, options_.device);
    check_actors_per_gpu(options_.actors_per_gpu, options_.device);
    settle_output(*app_, settled_.request, wanted_);
    check_results(*app_, wanted_, picture_count(settled_), report());
  }

  int run() override {
    check_outputs(wanted_, picture_count(settled_));
    settled_.model = found_model(settled_.model, parts_);
    Submission submission = make_submission(settled_);
    ask_for_results(wanted_, submission.request);
    check_plan(submission);
    check_video(wanted_, submission.model);
    return run_on_own_cluster(submission);
  }

 private:
  /// Returns how many actors to start: as many as CUDA shows GPUs, or as this process may use cores
  /// for, at most kMostHere: actors share a host's memory, and each has its part of it whether the
  /// planner takes it or not.
  int actors_here() const {
    constexpr int kMostHere = 16;
    int count = static_cast<int>(cluster::allowed_cpus().size()) / options_.threads_per_actor;
    if (options_.device == "cuda") count = cluster::visible_gpus() * options_.actors_per_gpu;
    return std::clamp(count, 1, kMostHere);
  }

  /// Throws where the job cannot run, before anything is started or loaded.
  void check_plan(const Submission& submission) const {
    if (const auto error = client::check_init_latents(submission.request))
      throw CommandError(*error);
    const wire::JobSpec job = client::to_wire(submission).value();
    const auto weights = job.request.weight_dtype;
    if (!cluster::has_products_of(parse_choice<DeviceKind>(options_.device).value(), weights))
      throw CommandError(Error{ErrorCode::bad_request,
                               cluster::no_products_text(weights, "--device " + options_.device)});
    try {
      const auto model = read_model(submission, nullptr);  // the cluster warns
      // Degrees that are picked are so by what the actors have measured; what is wrong with the
      // request shows on one actor.
      const bool picked = job.parallelism.automatic;
      plan::make_plan(model, job.request, picked ? wire::Parallelism{} : job.parallelism);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw CommandError(Error{ErrorCode::bad_request, error.what()});
    }
  }

  int run_on_own_cluster(const Submission& submission) {
    const Parallelism& degrees = submission.parallelism;
    options_.actors = static_cast<int>(degrees.world());
    if (degrees.automatic) options_.actors = actors_ > 0 ? actors_ : actors_here();
    options_.model = submission.model;
    make_log_folder(options_.log_folder);
    check_crowding(options_.actors, options_.threads_per_actor, options_.device);
    SignalWatch signals;
    cluster::Cluster cluster(options_);
    try {
      ActOnSignal stop(signals, [&] { cluster.stop(); });
      const StartingView view(options_.actors, wanted_.quiet);
      cluster.wait_ready(ready_deadline(options_.actors));
    } catch (const std::exception& error) {
      if (!signals.caught()) throw;
    }
    if (signals.caught())
      throw CommandError(Error{ErrorCode::interrupted, "interrupted while actors were starting"},
                         signals.exit_code());
    Client client = connect({cluster.endpoint(), ""}, signals);
    return follow_job(
        client,
        [&](Client::OnProgress on_progress) {
          return accepted(client.submit(submission, std::move(on_progress)), submission);
        },
        wanted_, report(), signals);
  }

  Report report() const { return json() ? Report::json : Report::text; }

  RequestOptions request_, settled_;
  ResultOptions results_, wanted_;
  cluster::ClusterOptions options_;
  int actors_ = 0;  // 0 = not given
  ModelParts parts_;
};

}  // namespace

std::unique_ptr<Verb> make_run(Options& options) {
  return std::make_unique<RunVerb>(options);
}

}  // namespace troupe::cli
