#include "models/samplers/later_steps.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::models {

LaterSteps::LaterSteps(std::unique_ptr<Sampler> whole, int first)
    : whole_(std::move(whole)), first_(first) {
  if (first_ < 0 || first_ >= whole_->steps()) {
    throw std::invalid_argument("[sampler] " + std::to_string(first_) + " of " +
                                std::to_string(whole_->steps()) +
                                " steps are left out: one must be left");
  }
}

}  // namespace troupe::models
