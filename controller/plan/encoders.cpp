#include "controller/plan/encoders.h"

#include <algorithm>
#include <numeric>

#include "transport/wire/prompt_rows.h"

namespace troupe::plan {
namespace {

constexpr std::uint64_t kLengthBytes = 8;

}  // namespace

std::vector<int> encoder_places(const std::vector<double>& costs, int actors) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return costs[i]; });
  std::vector<double> loads(static_cast<std::size_t>(actors));
  std::vector<int> places(costs.size());
  for (const auto encoder : order) {
    if (costs[encoder] <= 0) continue;
    const auto least = std::ranges::min_element(loads);
    *least += costs[encoder];
    places[encoder] = static_cast<int>(least - loads.begin());
  }
  return places;
}

double busiest_encoder(const std::vector<double>& costs, int actors) {
  const auto places = encoder_places(costs, actors);
  std::vector<double> loads(static_cast<std::size_t>(actors));
  for (std::size_t i = 0; i < costs.size(); ++i)
    loads[places[i]] += costs[i];
  return std::ranges::max(loads);
}

std::uint64_t caption_bytes(const Plan& plan, const spec::ModelSpec& model, int rank) {
  const int replica = plan.degrees.world() / plan.degrees.dp;
  const int dp = rank / replica;
  const auto& images = plan.images.at(dp);
  const auto element = element_bytes(plan.request.dtype);
  const auto length = plan.request.max_sequence_length;
  const auto& facts = model.transformer;
  if (rank == plan.text_rank(dp)) {
    const std::uint64_t rows = (images.end - images.begin) * (plan.guidance ? 2 : 1);
    const std::uint64_t values =
        facts.caption_tokens(length) * facts.caption_width + facts.pooled_width;
    return (replica - 1) * rows * (values * element + kLengthBytes);
  }
  if (!plan.encodes_text()) return 0;
  const auto rows = wire::prompt_rows(plan.request, images, plan.guidance).unique.size();
  const auto ranks = plan.encoder_ranks(dp);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& encoder = model.text_encoders[i];
    if (ranks[i] != rank || encoder.absent) continue;
    bytes += rows * (spec::output_shape(encoder, length).elements() * element + kLengthBytes);
  }
  return bytes;
}

}  // namespace troupe::plan
