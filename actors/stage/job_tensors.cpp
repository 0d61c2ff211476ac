#include <ATen/ATen.h>

#include "actors/stage/job.h"

// What those who look inside a job are shown.
namespace troupe::actors {

std::vector<std::pair<std::string, at::Tensor>> Job::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> named{{"latents", latents_}};
  for (std::size_t micro = 0; micro < sampler_states_.size(); ++micro) {
    const auto& history = sampler_states_[micro].history;
    for (std::size_t i = 0; i < history.size(); ++i) {
      if (!history[i].defined()) continue;
      named.emplace_back("history " + std::to_string(i) + " of micro-step " + std::to_string(micro),
                         history[i]);
    }
  }
  for (auto& [name, tensor] : network_->tensors())
    named.emplace_back(std::move(name), std::move(tensor));
  for (const auto& [from, transfer] : inbox_) {
    if (!transfer.work.done()) continue;  // it is being written to
    const auto& [place, stage] = from;
    std::string name = "received step " + std::to_string(place.step);
    if (place.patch >= 0) name += " patch " + std::to_string(place.patch);
    if (place.part > 0) name += " part " + std::to_string(place.part);
    if (stage != stage_before()) name += " of stage " + std::to_string(stage);
    named.emplace_back(std::move(name), transfer.tensor);
  }
  return named;
}

std::pair<at::Tensor, std::vector<wire::LatentRun>> Job::latent_rows() const {
  const auto rows = own_rows(-1);
  std::vector<wire::LatentRun> runs;
  for (const auto& run : rows)
    runs.push_back({run.begin * patch_size_, run.end * patch_size_});
  const auto own = rows.empty() ? latents_.slice(2, 0, 0) : gather_rows(latents_, rows);
  return {own.to(at::kCPU, at::kFloat).contiguous(), std::move(runs)};
}

}  // namespace troupe::actors
