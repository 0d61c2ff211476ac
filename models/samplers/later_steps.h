#pragma once
#include <memory>

#include "models/samplers/sampler.h"

namespace troupe::models {

/// A sampler without its first steps.
class LaterSteps final : public Sampler {
 public:
  /// Throws std::invalid_argument unless a step is left.
  LaterSteps(std::unique_ptr<Sampler> whole, int first);

  int steps() const override { return whole_->steps() - first_; }
  double timestep(int i) const override { return whole_->timestep(i + first_); }
  double init_noise_sigma() const override { return whole_->init_noise_sigma(); }
  at::Tensor scale_model_input(const at::Tensor& sample, int i) const override {
    return whole_->scale_model_input(sample, i + first_);
  }
  bool noise_needed(int i) const override { return whole_->noise_needed(i + first_); }
  at::Tensor step(SamplerState& state, int i, const at::Tensor& model_output,
                  const at::Tensor& sample, const at::Tensor& noise = {}) const override {
    return whole_->step(state, i + first_, model_output, sample, noise);
  }
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override {
    return whole_->add_noise(clean, noise, i + first_);
  }
  at::Tensor clean(SamplerState& state, int i, const at::Tensor& model_output,
                   const at::Tensor& sample, const at::Tensor& noise = {}) const override {
    return whole_->clean(state, i + first_, model_output, sample, noise);
  }
  bool needs_whole_picture() const override { return whole_->needs_whole_picture(); }

 private:
  std::unique_ptr<Sampler> whole_;
  int first_;
};

}  // namespace troupe::models
