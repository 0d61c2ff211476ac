#pragma once
#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/spec/scheduler_config.h"

namespace troupe::models::testing {

inline spec::SchedulerSpec scheduler(const std::string& class_name, const nlohmann::json& config) {
  return {class_name, config.dump(), "scheduler_config.json"};
}

inline double largest(const at::Tensor& t) {
  return t.abs().max().item<double>();
}

/// Settings that cover every solver, order and memory.
inline const std::vector<spec::SchedulerSpec>& some_schedulers() {
  static const std::vector<spec::SchedulerSpec> specs = [] {
    std::vector<spec::SchedulerSpec> out;
    for (int order : {1, 2, 3}) {
      for (const char* type : {"midpoint", "heun"}) {
        out.push_back(scheduler("DPMSolverMultistepScheduler",
                                {{"solver_order", order}, {"solver_type", type}}));
        out.push_back(
            scheduler("DPMSolverMultistepScheduler", {{"solver_order", order},
                                                      {"solver_type", type},
                                                      {"algorithm_type", "dpmsolver"},
                                                      {"final_sigmas_type", "sigma_min"}}));
      }
    }
    out.push_back(scheduler("DPMSolverMultistepScheduler", {{"use_karras_sigmas", true}}));
    out.push_back(scheduler("DDIMScheduler", {{"clip_sample", false}}));
    out.push_back(scheduler("EulerDiscreteScheduler", {{"timestep_spacing", "leading"}}));
    for (int order : {1, 2, 3}) {
      out.push_back(scheduler("UniPCMultistepScheduler", {{"solver_order", order}}));
    }
    for (const bool skip : {true, false})
      out.push_back(scheduler("PNDMScheduler", {{"skip_prk_steps", skip}}));
    return out;
  }();
  return specs;
}

/// Settings that add noise, and flow matching.
inline const std::vector<spec::SchedulerSpec>& other_schedulers() {
  static const std::vector<spec::SchedulerSpec> specs = [] {
    std::vector<spec::SchedulerSpec> out;
    for (int order : {1, 2, 3}) {
      out.push_back(scheduler("DPMSolverMultistepScheduler",
                              {{"solver_order", order}, {"algorithm_type", "sde-dpmsolver++"}}));
    }
    out.push_back(scheduler("DDPMScheduler", {{"clip_sample", false}}));
    out.push_back(scheduler("EulerAncestralDiscreteScheduler", nlohmann::json::object()));
    out.push_back(scheduler("LCMScheduler", nlohmann::json::object()));
    out.push_back(scheduler("FlowMatchEulerDiscreteScheduler", {{"shift", 3.0}}));
    out.push_back(scheduler("FlowMatchEulerDiscreteScheduler", {{"stochastic_sampling", true}}));
    out.push_back(scheduler(
        "UniPCMultistepScheduler",
        {{"use_flow_sigmas", true}, {"prediction_type", "flow_prediction"}, {"flow_shift", 3.0}}));
    return out;
  }();
  return specs;
}

}  // namespace troupe::models::testing
