#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "actors/job.h"

// What a job sends to other actors and takes from them.
namespace troupe::actors {

void Job::post_receive(Place place, int stage) {
  const auto on_device = at::TensorOptions().device(tools_.stage.device());
  Transfer transfer;
  auto from = begin_.groups.previous;
  if (first_stage()) {
    const auto rows = count_rows(own_rows(place.patch));
    transfer.tensor = at::empty({images(), channels_, rows * patch_size_, size_.latent_width},
                                on_device.dtype(at::kFloat));
  } else {
    const auto step = network_step(place);
    auto shape = network_->input_shape(step);
    if (stage == stage_before()) {
      if (const auto size = network_->note_size(step); size > 0) {
        transfer.note = at::empty({size}, on_device.dtype(at::kByte));
        transfer.note_work = group(from)->receive(transfer.note, 0);
      }
      for (const auto& edge : begin_.groups.skips_from)
        shape.back() -= edge.channels;
    } else {
      const auto& edges = begin_.groups.skips_from;
      const auto edge = std::ranges::find(edges, stage, &wire::SkipEdge::stage);
      if (edge == edges.end()) {
        throw std::logic_error("[actor] stage " + std::to_string(stage) +
                               " has no edge to this one, at " + place_text(place));
      }
      from = edge->group;
      shape.back() = edge->channels;
    }
    if (shape.back() <= 0) {
      throw std::logic_error(
          "[actor] the edges of earlier stages bring more channels than this one "
          "takes, at " +
          place_text(place));
    }
    transfer.tensor = at::empty(shape, on_device.dtype(tools_.stage.dtype()));
  }
  if (transfer.tensor.numel() > 0) transfer.work = group(from)->receive(transfer.tensor, 0);
  inbox_.emplace(std::pair{place, stage}, std::move(transfer));
}

at::Tensor Job::take_transfer(Place place, int stage) {
  const auto entry = inbox_.find({place, stage});
  if (entry == inbox_.end()) {
    throw std::logic_error("[actor] no receive from stage " + std::to_string(stage) +
                           " was posted for " + place_text(place));
  }
  wait(entry->second.work);
  auto tensor = std::move(entry->second.tensor);
  inbox_.erase(entry);
  return tensor;
}

at::Tensor Job::take_hidden(const NetworkStep& step) {
  if (const auto entry = inbox_.find({step.place, stage_before()});
      entry != inbox_.end() && entry->second.note.defined()) {
    wait(entry->second.note_work);
    await_device();
    network_->take_note(step, entry->second.note);
  }
  auto hidden = take_transfer(step.place, stage_before());
  if (begin_.groups.skips_from.empty()) return hidden;
  std::vector<at::Tensor> parts{std::move(hidden)};
  for (const auto& edge : begin_.groups.skips_from)
    parts.push_back(take_transfer(step.place, edge.stage));
  return at::cat(parts, 2);
}

void Job::send_hidden(const NetworkStep& step, const at::Tensor& hidden) {
  if (network_->note_size(step) > 0)
    sends_.push_back(group(begin_.groups.next)->send(network_->note(step), 1));
  const auto& skips = begin_.groups.skips_to;
  if (skips.empty()) return send_on(hidden, true);
  std::int64_t channels = hidden.size(2);
  for (const auto& edge : skips)
    channels -= edge.channels;
  send_on(hidden.slice(2, 0, channels), true);
  for (const auto& edge : skips) {
    const auto skip = hidden.slice(2, channels, channels + edge.channels);
    if (skip.numel() > 0) sends_.push_back(group(edge.group)->send(skip, 1));
    channels += edge.channels;
  }
}

void Job::prune_sends() {
  std::erase_if(sends_, [](const tensor::Work& work) {
    if (!work.done()) return false;
    work.wait({});  // throws what ended it
    return true;
  });
}

void Job::send_on(const at::Tensor& out, bool needed) {
  prune_sends();
  if (!needed || out.numel() == 0) return;
  sends_.push_back(group(begin_.groups.next)->send(out, 1));
}

void Job::collect_latents(int decoders) {
  const auto rows_group = group(begin_.groups.rows);
  if (!rows_group) return;
  const int own = begin_.row_rank;
  const auto& holders = begin_.row_holders;
  std::vector<tensor::PeerTensor> sends;
  std::vector<tensor::PeerTensor> receives;
  std::vector<std::pair<RowRuns, at::Tensor>> arrivals;
  for (int holder = 0; holder < static_cast<int>(holders.size()); ++holder) {
    const auto rows = rows_of(begin_.micro_steps, -1, holder);
    if (rows.empty()) continue;
    if (holders[holder] == own) {
      const auto out = gather_rows(latents_, rows).contiguous();
      for (int decoder = 0; decoder < decoders; ++decoder) {
        if (decoder != own) sends.push_back({out, decoder});
      }
    } else if (own < decoders) {
      const auto in =
          at::empty({images(), channels_, count_rows(rows) * patch_size_, size_.latent_width},
                    latents_.options());
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
  wait(work);
  for (const auto& [rows, in] : arrivals)
    scatter_rows(latents_, rows, in);
}

}  // namespace troupe::actors
