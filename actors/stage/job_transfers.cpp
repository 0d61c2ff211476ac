#include "actors/stage/job_transfers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

namespace troupe::actors {

void JobTransfers::post_receive(StepPlace place, int stage) {
  const auto on_device = at::TensorOptions().device(job_.tools.stage.device());
  const auto& groups = job_.begin.groups;
  Transfer transfer;
  auto from = groups.previous;
  if (job_.first_stage()) {
    transfer.tensor =
        at::empty(job_.latent_shape(job_.own_rows(place.patch)), on_device.dtype(at::kFloat));
  } else {
    const auto step = job_.network_step(place);
    auto shape = network_.input_shape(step);
    if (stage == job_.previous_stage()) {
      if (const auto size = network_.note_size(step); size > 0) {
        transfer.note = at::empty({size}, on_device.dtype(at::kByte));
        transfer.note_work = job_.group(from)->receive(transfer.note, 0);
      }
      for (const auto& edge : groups.skips_from)
        shape.back() -= edge.channels;
    } else {
      const auto edge = std::ranges::find(groups.skips_from, stage, &wire::SkipEdge::stage);
      if (edge == groups.skips_from.end()) {
        throw std::logic_error("[actor] stage " + std::to_string(stage) +
                               " has no edge to this one, at " + job_.describe(place));
      }
      from = edge->group;
      shape.back() = edge->channels;
    }
    if (shape.back() <= 0) {
      throw std::logic_error(
          "[actor] the edges of earlier stages bring more channels than this one "
          "takes, at " +
          job_.describe(place));
    }
    transfer.tensor = at::empty(shape, on_device.dtype(job_.tools.stage.dtype()));
  }
  if (transfer.tensor.numel() > 0) transfer.work = job_.group(from)->receive(transfer.tensor, 0);
  inbox_.emplace(std::pair{place, stage}, std::move(transfer));
}

at::Tensor JobTransfers::take(StepPlace place, int stage) {
  const auto entry = inbox_.find({place, stage});
  if (entry == inbox_.end()) {
    throw std::logic_error("[actor] no receive from stage " + std::to_string(stage) +
                           " was posted for " + job_.describe(place));
  }
  job_.waits.wait(entry->second.work);
  auto tensor = std::move(entry->second.tensor);
  inbox_.erase(entry);
  return tensor;
}

at::Tensor JobTransfers::take_hidden(const NetworkStep& step) {
  const int previous = job_.previous_stage();
  if (const auto entry = inbox_.find({step.place, previous});
      entry != inbox_.end() && entry->second.note.defined()) {
    job_.waits.wait(entry->second.note_work);
    job_.waits.await_device();
    network_.take_note(step, entry->second.note);
  }
  auto hidden = take(step.place, previous);
  const auto& skips = job_.begin.groups.skips_from;
  if (skips.empty()) return hidden;
  std::vector<at::Tensor> parts{std::move(hidden)};
  for (const auto& edge : skips)
    parts.push_back(take(step.place, edge.stage));
  return at::cat(parts, 2);
}

void JobTransfers::take_latents(StepPlace place) {
  const auto [step, patch, part] = place;
  if (job_.begin.stage.degree == 1 || step == job_.begin.first_step) return;
  const int previous = job_.previous_stage();
  if (job_.is_whole(step - 1)) {
    // The whole picture comes at once, before the first part or patch.
    if (part == 0 && patch <= 0) latents_.scatter(job_.own_rows(-1), take({step, -1, 0}, previous));
    return;
  }
  for (int micro = 0; micro < job_.micro_steps(); ++micro) {
    const bool needed = patch < 0 ? part == 0 : micro == patch;
    if (needed) latents_.scatter(job_.own_rows(micro), take({step, micro, 0}, previous));
  }
}

void JobTransfers::send(std::uint32_t group, const at::Tensor& tensor) {
  if (tensor.numel() > 0) sends_.push_back(job_.group(group)->send(tensor, 1));
}

void JobTransfers::prune_sends() {
  std::erase_if(sends_, [](const tensor::Work& work) {
    if (!work.done()) return false;
    work.wait({});  // throws what ended it
    return true;
  });
}

void JobTransfers::send_hidden(const NetworkStep& step, const at::Tensor& hidden) {
  const auto& groups = job_.begin.groups;
  prune_sends();
  if (network_.note_size(step) > 0) send(groups.next, network_.note(step));
  std::int64_t channels = hidden.size(2);
  for (const auto& edge : groups.skips_to)
    channels -= edge.channels;
  send(groups.next, hidden.slice(2, 0, channels));
  for (const auto& edge : groups.skips_to) {
    send(edge.group, hidden.slice(2, channels, channels + edge.channels));
    channels += edge.channels;
  }
}

void JobTransfers::send_latents(const NetworkStep& step, const RowRuns& rows) {
  prune_sends();
  if (job_.begin.stage.degree > 1 && !step.last)
    send(job_.begin.groups.next, latents_.gather(rows).clone(at::MemoryFormat::Contiguous));
}

void JobTransfers::collect_latents(int decoders) {
  const auto rows_group = job_.group(job_.begin.groups.rows);
  if (!rows_group) return;
  const int own = job_.begin.row_rank;
  const auto& holders = job_.begin.row_holders;
  std::vector<tensor::PeerTensor> sends;
  std::vector<tensor::PeerTensor> receives;
  std::vector<std::pair<RowRuns, at::Tensor>> arrivals;
  for (int holder = 0; holder < static_cast<int>(holders.size()); ++holder) {
    const auto rows = rows_of(job_.begin.micro_steps, -1, holder);
    if (rows.empty()) continue;
    if (holders[holder] == own) {
      const auto out = latents_.gather(rows).contiguous();
      for (int decoder = 0; decoder < decoders; ++decoder) {
        if (decoder != own) sends.push_back({out, decoder});
      }
    } else if (own < decoders) {
      const auto in = at::empty(job_.latent_shape(rows), latents_.all().options());
      receives.push_back({in, holders[holder]});
      arrivals.emplace_back(rows, in);
    }
  }
  if (sends.empty() && receives.empty()) return;
  const auto work = rows_group->grouped(sends, receives);
  if (arrivals.empty()) {
    sends_.push_back(work);
    return;
  }
  job_.waits.wait(work);
  for (const auto& [rows, in] : arrivals)
    latents_.scatter(rows, in);
}

std::vector<std::pair<std::string, at::Tensor>> JobTransfers::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const auto& [from, transfer] : inbox_) {
    if (!transfer.work.done()) continue;  // it is being written to
    const auto& [place, stage] = from;
    std::string name = "received step " + std::to_string(place.step);
    if (place.patch >= 0) name += " patch " + std::to_string(place.patch);
    if (place.part > 0) name += " part " + std::to_string(place.part);
    if (stage != job_.previous_stage()) name += " of stage " + std::to_string(stage);
    named.emplace_back(std::move(name), transfer.tensor);
  }
  return named;
}

}  // namespace troupe::actors
