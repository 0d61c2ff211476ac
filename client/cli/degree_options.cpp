#include "client/cli/checks.h"
#include "client/cli/request_options.h"
#include "models/spec/request_limits.h"

namespace troupe::cli {
namespace {

constexpr int kMostDegree = 1 << 20;
using spec::kMaxActors;

}  // namespace

void add_degree_options(CLI::App& app, RequestOptions& options) {
  const std::string group =
      "Parallelism (--method, --patches, --warmup, --kv, --step-cache, --group-norm and --exchange "
      "change the picture, the rest does not)";
  app.add_option("--method", options.method,
                 "exact, pipefusion or distrifusion; default: pipefusion when --patches > 1")
      ->check(one_of({"exact", "pipefusion", "distrifusion"}))
      ->type_name("NAME")
      ->group(group);
  app.add_option("--patches", options.request.num_pipeline_patch,
                 "Runs of token rows that pipefusion and distrifusion split a picture into")
      ->check(whole(1, kMostDegree))
      ->type_name("M")
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup", options.request.warmup_steps,
                 "Synchronous steps at the start of pipefusion and distrifusion")
      ->check(whole(0, kMostDegree))
      ->type_name("K")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kv", options.request.kv,
                 "K,V that are not fresh: stale (as they are) or predict (extrapolated)")
      ->check(one_of({"stale", "predict"}))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--group-norm", options.request.group_norm,
                 "U-Nets by patches: moments corrected, stale, synchronous or separate")
      ->check(one_of({"corrected", "stale", "synchronous", "separate"}))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--exchange", options.request.exchange,
         "U-Nets by patches, after the warm-up: stale, none (of the warm-up) or all (fresh)")
      ->check(one_of({"stale", "none", "all"}))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--step-cache", options.request.step_cache,
                 "Skip the blocks in steps that change little: first-block or teacache")
      ->check(one_of({"first-block", "teacache"}))
      ->type_name("NAME")
      ->group(group);
  app.add_option("--step-cache-threshold", options.request.step_cache_threshold,
                 "Relative change up to which it skips; default: 0.05, with teacache 0.25")
      ->check(number_above(0, 10))
      ->type_name("T")
      ->group(group);
  app.add_option("--refill-steps", options.request.refill_steps,
                 "Steps after the warm-up computed whole, as a report names them after a loss")
      ->delimiter(',')
      ->check(whole(0, kMostDegree))
      ->type_name("LIST")
      ->group(group);
  app.add_option("--dp", options.parallelism.dp, "Replicas that pictures are split over")
      ->check(whole(1, kMaxActors))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--cfg", options.parallelism.cfg,
                 "1 or 2 = the guidance branches on actors of their own")
      ->check(whole(1, 2))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--pp", options.parallelism.pp,
                 "Pipeline stages that the model's blocks are split over")
      ->check(whole(1, kMaxActors))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  const auto add_degree = [&](const char* name, int& degree, const char* description) {
    app.add_option(name, degree, description)
        ->check(whole(1, kMaxActors))
        ->type_name("N")
        ->capture_default_str()
        ->group(group);
  };
  add_degree("--ulysses", options.parallelism.ulysses,
             "Sequence parallel: tokens split, heads exchanged (all-to-all)");
  add_degree("--ring", options.parallelism.ring,
             "Sequence parallel: tokens split, K,V blocks travel; with distrifusion, patches side "
             "by side");
  add_degree("--tp", options.parallelism.tp,
             "Tensor parallel: heads and feed-forward columns split");
  add_degree("--vae-parallel", options.parallelism.vae,
             "Actors that decode a picture together, and encode the one to begin with, by rows");
  app.add_option("--stages", options.parallelism.stages,
                 "Blocks of each pipeline stage, as 7,7,7,7; default: split by cost")
      ->delimiter(',')
      ->check(whole(1, kMostDegree))
      ->type_name("LIST")
      ->group(group);
  app.add_option("--parallel", options.parallel, "auto = pick the degrees for the actors at hand")
      ->check(one_of({"auto"}))
      ->type_name("auto")
      ->group(group);
}

void add_elastic_option(CLI::App& app, RequestOptions& options) {
  app.add_flag("--elastic", options.elastic,
               "Go on with fewer actors when lost ones do not come back: degrees are picked anew");
}

void add_queue_options(CLI::App& app, RequestOptions& options) {
  const std::string group = "Queue";
  app.add_option("--priority", options.priority, "Jobs of higher priority go first, -100 to 100")
      ->check(whole(-100, 100))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--share", options.share,
                 "Whom the job counts for: shares get as much as each other; default: the client")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            if (text.empty()) return "is empty";
            return text.size() <= 64 ? "" : "the name is longer than 64 bytes";
          },
          ""))
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--may-batch", options.may_batch,
               "Compute as one batch with waiting jobs that allow it too and differ in prompts and "
               "seed only, not in what comes back (last bits may change)")
      ->group(group);
}

}  // namespace troupe::cli
