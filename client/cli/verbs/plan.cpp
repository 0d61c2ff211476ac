#include "controller/plan/plan.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/format.h"
#include "base/suggest.h"
#include "base/text.h"
#include "client/cli/json.h"
#include "client/cli/named_model.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "controller/deployments/device_kinds.h"
#include "controller/deployments/memory_room.h"
#include "controller/plan/layout.h"
#include "controller/plan/machine_json.h"
#include "controller/plan/report.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace {

/// Number of actors that a remedy may need, where nobody says how many there are.
constexpr int kActorsToTry = 8;

/// "; did you mean l40x8?" of a device that is in no table, or "".
std::string meant_machine(const std::string& text) {
  const auto cross = text.find_last_of("xX");
  const bool counted = cross != std::string::npos && cross + 1 < text.size() &&
                       text.find_first_not_of("0123456789", cross + 1) == std::string::npos;
  auto name = text.substr(0, counted ? cross : text.size());
  if (counted && name.ends_with('-')) name.pop_back();
  auto guess = nearest(name, plan::machine_names());
  if (guess.empty()) return "";
  if (counted) guess += "x" + text.substr(cross + 1);
  try {
    plan::machine_of(guess);
  } catch (const std::invalid_argument&) {
    return "";  // as its number of devices is the matter
  }
  return "; did you mean " + guess + "?";
}

class PlanVerb : public Verb {
 public:
  explicit PlanVerb(Options& options) : Verb(options) {
    add_request_options(*app_, request_);
    add_parts_options(*app_, parts_);
    add_degree_options(*app_, request_);
    const std::string group = "Prediction";
    app_->add_flag("--explain", explain_,
                   "Print predicted seconds, bytes and memory, too; with --parallel auto of the "
                   "best mixes")
        ->group(group);
    app_->add_option("--actors", actors_,
                     "Actors there are: for --parallel auto, and for what fits")
        ->check(whole(1, 1024))
        ->type_name("N")
        ->group(group);
    app_->add_option("--simulate", simulate_,
                     "Explain for devices that are not here: l40, l20, t4, a100-pcie, a100-nvlink, "
                     "h100-nvlink, h200-nvlink or cpu, with xN for N of them")
        ->check(not_empty())
        ->type_name("DEVICE[xN]")
        ->group(group);
    app_->add_option("--connect", target_.endpoint,
                     "Explain for the actors of the cluster whose controller listens there, by "
                     "what it has measured of them: ipc://PATH, tcp://HOST:PORT or HOST:PORT")
        ->check(not_empty())
        ->type_name("ENDPOINT")
        ->configurable(false)  // no default: a plan needs no cluster
        ->group(group);
    add_keys_option(*app_, target_.keys, "Folder of keys, for --connect");
    app_->add_option("--memory-limit", gigabytes_,
                     "Memory of an actor; default: the simulated device's")
        ->check(number(1e-6, 1e6))
        ->type_name("GB")
        ->group(group);
    app_->add_rivals({"--connect", "--simulate"});
    set_footer(
        "Needs no cluster and loads no weights. Where it is connected to one, it plans with what "
        "was measured there.",
        {"troupe plan --model DIR --cfg 2 --pp 2 --patches 4 --height 512 --width 768",
         "troupe plan --model DIR --parallel auto --actors 4 --explain",
         "troupe plan --model DIR --parallel auto --dtype bfloat16 --simulate l40x8",
         "troupe plan --model DIR --parallel auto --connect tcp://127.0.0.1:7400"},
        "commands.md#plan");
  }

  void check() override {
    settled_ = request_;
    if (settled_.request.prompts.empty() && settled_.bare_words.empty() &&
        settled_.prompt_embeds_path.empty())
      settled_.request.prompts = {"any"};
    take_prompts(settled_, "plan");
    if (settled_.model.empty()) throw UsageError("plan needs --model");
    settle(settled_);
    const bool connects = !target_.endpoint.empty();
    if (connects && !simulate_.empty())
      throw UsageError("--connect and --simulate do not go together: one cluster or the other");
    if (app_->count("--keys") > 0 && !connects)
      throw UsageError("--keys goes with --connect only: else no cluster is asked");
    const auto& degrees = settled_.parallelism;
    if (degrees.automatic && actors_ == 0 && simulate_.empty() && !connects)
      throw UsageError("--parallel auto needs --actors here, or --simulate or --connect");
    if (actors_ > 0 && degrees.world() > actors_)
      throw UsageError(
          fmt::format("the degrees need {} actors, --actors is {}", degrees.world(), actors_));
    try {
      if (!simulate_.empty()) plan::machine_of(simulate_);
    } catch (const std::invalid_argument& error) {
      throw UsageError(std::string("--simulate: ") + error.what() + meant_machine(simulate_));
    }
  }

  int run() override {
    settled_.model = found_model(settled_.model, parts_);
    const Submission submission = make_submission(settled_);
    const wire::JobSpec job = client::to_wire(submission).value();
    const bool connects = !target_.endpoint.empty();
    const bool explained = explain_ || !simulate_.empty() || connects;
    if (connects) {
      const auto told = take(connect_inspector(target_).machine());
      cluster_ = plan::machine_from_json(nlohmann::json::parse(told));
    }
    try {
      std::vector<std::string> warnings;
      const auto model = read_model(submission, &warnings);
      print(model, job, explained, warnings);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception& error) {
      // What a controller would refuse, under the code that it would refuse it with.
      throw CommandError(Error{ErrorCode::bad_request, error.what()});
    }
    return kOk;
  }

 private:
  void print(const spec::ModelSpec& model, const wire::JobSpec& job, bool explained,
             const std::vector<std::string>& warnings) const {
    const auto add_warnings = [&](plan::Plan& plan) {
      plan.warnings.insert(plan.warnings.end(), warnings.begin(), warnings.end());
    };
    if (!explained && !job.parallelism.automatic) {
      auto plan = plan::make_plan(model, job.request, job.parallelism);
      check_limits(plan, model, job);
      warn_of_fp8(plan);
      add_warnings(plan);
      json() ? print_json(plan::to_json(plan)) : print_text(plan::to_text(plan));
      return;
    }
    auto found = explanation(model, job);
    // What its GPUs are, a cluster does not say.
    if (cluster_ && !cluster_->fp8) warn_of_fp8(found.plan);
    add_warnings(found.plan);
    check_limits(found.plan, model, job);
    if (!explained) {
      json() ? print_json(plan::to_json(found.plan))
             : print_text(in_options(plan::to_text(found.plan)));
    } else if (json()) {
      print_json(plan::to_json(found, model));
    } else {
      print_text(in_options(plan::to_text(found, model) + "\n" + plan::to_text(found.plan)));
    }
  }

  static void warn_of_fp8(plan::Plan& plan) {
    if (plan.request.weight_dtype == WeightChoice::fp8)
      plan.warnings.push_back(
          "fp8 needs a GPU of compute capability 8.9: a cluster without one refuses this job");
  }

  /// Throws std::invalid_argument where the plan does not fit into the memory that the user says
  /// there is.
  void check_limits(const plan::Plan& plan, const spec::ModelSpec& model,
                    const wire::JobSpec& job) const {
    if (gigabytes_ == 0) return;
    const auto limit = static_cast<std::uint64_t>(gigabytes_ * 1e9);
    const auto lacking = [limit](const plan::Plan& other) {
      const auto needs = cluster::needs_of(other);
      std::optional<cluster::Shortage> most;  // of the rank that needs most
      cluster::by_memory(needs, std::vector(needs.size(), std::pair(cluster::ActorId{}, limit)),
                         &most);
      return most;
    };
    const auto lack = lacking(plan);
    if (!lack) return;
    const int least = plan.degrees.world();
    int actors = actors_;
    if (actors == 0 && (cluster_ || !simulate_.empty()))
      actors = std::max(least, machine_for(least).devices);
    std::string among;
    if (actors == 0) {
      actors = std::max(least, kActorsToTry);
      among = fmt::format("up to {} actors (--actors says how many there are)", actors);
    }
    auto settled = job;
    settled.parallelism.automatic = false;
    throw std::invalid_argument(
        cluster::too_large(plan, *lack, "by --memory-limit an actor") + ": " +
        cluster::memory_remedy(
            model, settled, actors, [&](const plan::Plan& other) { return !lacking(other); }, among,
            [&] {
              return cluster::fitting_mix(model, settled.request, actors, machine_for(actors),
                                          limit);
            },
            cluster_ ? *cluster_ : plan::Machine{}));
  }

  plan::Machine machine_for(int actors) const {
    if (cluster_) return *cluster_;
    if (!simulate_.empty()) return plan::machine_of(simulate_);
    return plan::this_cpu(actors, static_cast<int>(std::thread::hardware_concurrency()));
  }

  plan::Explanation explanation(const spec::ModelSpec& model, const wire::JobSpec& job) const {
    const auto& degrees = job.parallelism;
    const int asked = plan::degrees_of(degrees).world();
    const bool here = simulate_.empty() && !cluster_;
    auto machine = here ? plan::machine_of("cpu") : machine_for(asked);
    int actors = actors_ > 0 ? actors_ : machine.devices;
    if (!degrees.automatic && actors_ == 0) actors = asked;
    if (here) machine = machine_for(actors);
    const auto weights = job.request.weight_dtype;
    const bool fits =
        cluster::has_products_of(machine.gpus ? DeviceKind::cuda : DeviceKind::cpu, weights) &&
        (weights != WeightChoice::fp8 || machine.fp8 || cluster_);
    if (!fits)
      throw std::invalid_argument(cluster::no_products_text(
          weights, here ? "this host (--simulate plans for others)" : machine.name));
    if (actors > machine.devices) {
      throw UsageError(
          (cluster_ ? machine.name : "--simulate " + simulate_) + " has " +
          counted(machine.devices, "device") + ": too few for " + counted(actors, "actor") +
          (cluster_ ? "" : fmt::format("; --simulate {}x{} has as many", machine.name, actors)));
    }
    plan::Limits limits;
    limits.memory = static_cast<std::uint64_t>(gigabytes_ * 1e9);
    return plan::explain(model, job, actors, machine, limits);
  }

  static void print_text(const std::string& text) {
    std::cout << text << (text.empty() || text.back() != '\n' ? "\n" : "") << std::flush;
  }

  RequestOptions request_, settled_;
  bool explain_ = false;
  ModelParts parts_;
  int actors_ = 0;
  std::string simulate_;
  Target target_;  // "" = none
  std::optional<plan::Machine> cluster_;
  double gigabytes_ = 0;
};

}  // namespace

std::unique_ptr<Verb> make_plan(Options& options) {
  return std::make_unique<PlanVerb>(options);
}

}  // namespace troupe::cli
