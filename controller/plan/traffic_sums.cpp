#include <numeric>

#include "controller/plan/traffic.h"

// What all kinds of traffic are added up with.
namespace troupe::plan {

std::uint64_t RankTraffic::of(const std::string& role) const {
  const auto found = sent.find(role);
  return found == sent.end() ? 0 : found->second;
}

std::uint64_t RankTraffic::total() const {
  return std::accumulate(sent.begin(), sent.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& entry) { return sum + entry.second; });
}

std::uint64_t all_reduce_bytes(std::uint64_t elements, std::uint64_t element_size, int size,
                               int rank) {
  const auto begin = [&](int owner) { return elements * owner / size; };
  const std::uint64_t own = begin(rank + 1) - begin(rank);
  return (elements - own + (size - 1) * own) * element_size;
}

std::uint64_t rescale_bytes(const Plan& plan, const mesh::Coordinates& at, int patches) {
  const auto& degrees = plan.degrees;
  const std::uint64_t images = plan.images[at.dp].end - plan.images[at.dp].begin;
  return all_reduce_bytes(patches * images * 5, 8, degrees.sp() * degrees.tp,
                          mesh::sequence_rank(degrees, at) * degrees.tp + at.tp);
}

std::uint64_t encoded_picture_bytes(const Plan& plan, int dp) {
  const std::uint64_t samples =
      plan.request.seeds.size() > 1 ? plan.images[dp].end - plan.images[dp].begin : 1;
  const std::int64_t mask = plan.request.mask_image_bytes > 0 ? 1 : 0;  // a channel more
  return samples *
         static_cast<std::uint64_t>((plan.latent_channels + mask) * plan.latent_height *
                                    plan.latent_width) *
         sizeof(float);
}

std::vector<PaperOrder> paper_orders(double tokens, double width, int layers, int devices,
                                     double element_size) {
  const double hidden = tokens * width * element_size;
  return {{"tensor parallel", "4·p·h·L", false, 4 * hidden * layers},
          {"DistriFusion", "2·p·h·L", true, 2 * hidden * layers},
          {"ring", "2·p·h·L", true, 2 * hidden * layers},
          {"Ulysses", "4/N·p·h·L", false, 4 * hidden * layers / devices},
          {"PipeFusion", "2·p·h", true, 2 * hidden}};
}

}  // namespace troupe::plan
