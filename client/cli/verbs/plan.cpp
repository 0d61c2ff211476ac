#include "controller/plan/plan.h"

#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "client/cli/json.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "controller/plan/explain.h"
#include "models/spec/lora_spec.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace {

class PlanVerb : public Verb {
 public:
  explicit PlanVerb(CLI::App& parent)
      : Verb(parent, "plan",
             "Print mesh, groups, stages, patches and memory of a request, or why it is "
             "impossible") {
    add_request_options(*app_, request_);
    add_degree_options(*app_, request_);
    const std::string group = "Prediction";
    app_->add_flag("--explain", explain_,
                   "Print predicted seconds, bytes and memory, too; with --parallel auto of the "
                   "best mixes")
        ->group(group);
    app_->add_option("--actors", actors_, "Actors that --parallel auto may use")
        ->check(whole(1, 1024))
        ->type_name("N")
        ->group(group);
    app_->add_option("--simulate", simulate_,
                     "Explain for devices that are not here: l40, l20, t4, a100-pcie, a100-nvlink, "
                     "h100-nvlink or cpu, with xN for N of them")
        ->type_name("DEVICE[xN]")
        ->group(group);
    app_->add_option("--memory-limit", gigabytes_,
                     "Memory of an actor; default: the simulated device's")
        ->check(number(1e-6, 1e6))
        ->type_name("GB")
        ->group(group);
    app_->footer(
        "Needs no cluster and loads no weights.\n\n"
        "Examples:\n"
        "  troupe plan --model DIR --cfg 2 --pp 2 --patches 4 --height 512 --width 768\n"
        "  troupe plan --model DIR --parallel auto --actors 4 --explain\n"
        "  troupe plan --model DIR --parallel auto --dtype bfloat16 --simulate l40x8");
  }

  int run() override {
    if (request_.model.empty()) throw UsageError("plan needs --model");
    if (request_.request.prompts.empty()) request_.request.prompts = {""};
    settle(request_);
    const wire::JobSpec job = client::to_wire(make_submission(request_));
    const bool explained = explain_ || !simulate_.empty();
    if (job.parallelism.automatic && actors_ == 0 && simulate_.empty())
      throw UsageError("--parallel auto needs --actors here, or --simulate");
    check_options(job);
    try {
      const auto model = spec::read_model_spec(job.model);
      for (const auto& lora : job.request.loras)
        spec::read_lora_spec(lora.path, model);
      print(model, job, explained);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception& error) {
      // What a controller would refuse, under the code that it would refuse it with.
      throw CommandError(Error{"bad_request", error.what()});
    }
    return kOk;
  }

 private:
  void print(const spec::ModelSpec& model, const wire::JobSpec& job, bool explained) const {
    if (!explained && !job.parallelism.automatic) {
      const auto plan = plan::make_plan(model, job.request, job.parallelism);
      check_limits(plan);
      json() ? print_json(plan::to_json(plan)) : print_text(plan::to_text(plan));
      return;
    }
    const auto found = explanation(model, job);
    check_limits(found.plan);
    if (!explained) {
      json() ? print_json(plan::to_json(found.plan)) : print_text(plan::to_text(found.plan));
    } else if (json()) {
      print_json(plan::to_json(found, model));
    } else {
      print_text(plan::to_text(found, model) + "\n" + plan::to_text(found.plan));
    }
  }

  /// What is wrong with any model.
  void check_options(const wire::JobSpec& job) const {
    const auto& degrees = job.parallelism;
    const std::int64_t world = std::int64_t{degrees.dp} * degrees.cfg * degrees.pp *
                               degrees.ulysses * degrees.ring * degrees.tp;
    if (actors_ > 0 && world > actors_) {
      throw UsageError("the degrees need " + std::to_string(world) + " actors, --actors is " +
                       std::to_string(actors_));
    }
    try {
      if (!simulate_.empty()) plan::machine_of(simulate_);
    } catch (const std::invalid_argument& error) {
      throw UsageError(std::string("--simulate: ") + error.what());
    }
  }

  /// What the user says there is.
  void check_limits(const plan::Plan& plan) const {
    for (std::size_t rank = 0; gigabytes_ > 0 && rank < plan.memory.size(); ++rank) {
      const double peak = static_cast<double>(plan.memory[rank].peak()) * 1e-9;
      if (peak <= gigabytes_) continue;
      char text[160];
      std::snprintf(text, sizeof text,
                    "[plan] rank %zu needs %.4g GB at its peak, --memory-limit is %.4g", rank, peak,
                    gigabytes_);
      throw std::invalid_argument(text);
    }
  }

  plan::Explanation explanation(const spec::ModelSpec& model, const wire::JobSpec& job) const {
    const auto& degrees = job.parallelism;
    const int asked =
        degrees.dp * degrees.cfg * degrees.pp * degrees.ulysses * degrees.ring * degrees.tp;
    auto machine = plan::machine_of(simulate_.empty() ? "cpu" : simulate_);
    int actors = actors_ > 0 ? actors_ : machine.devices;
    if (!degrees.automatic && actors_ == 0) actors = asked;
    if (simulate_.empty()) {
      machine = plan::this_cpu(actors, static_cast<int>(std::thread::hardware_concurrency()));
    }
    if (actors > machine.devices) {
      throw UsageError("--simulate " + simulate_ + " has " + std::to_string(machine.devices) +
                       " devices: too few for " + std::to_string(actors) + " actors");
    }
    plan::Limits limits;
    limits.memory = static_cast<std::uint64_t>(gigabytes_ * 1e9);
    return plan::explain(model, job, actors, machine, limits);
  }

  static void print_text(const std::string& text) {
    std::cout << text << (text.empty() || text.back() != '\n' ? "\n" : "") << std::flush;
  }

  RequestOptions request_;
  bool explain_ = false;
  int actors_ = 0;
  std::string simulate_;
  double gigabytes_ = 0;
};

}  // namespace

std::unique_ptr<Verb> make_plan(CLI::App& parent) {
  return std::make_unique<PlanVerb>(parent);
}

}  // namespace troupe::cli
