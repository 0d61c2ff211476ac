#include "controller/plan/unet_shares.h"

#include "controller/plan/patches.h"

namespace troupe::plan {
namespace {

using Kind = spec::UNetSite::Kind;

/// Bytes at whose multiples patches' shares begin in a buffer (actors/parallel/patch_group.cpp).
constexpr std::uint64_t kAlignment = 16;

}  // namespace

UNetShares::UNetShares(const Plan& plan, const spec::UNetSpec& unet)
    : plan_(plan), sites_(spec::sites_of(unet)) {
  std::vector<std::int64_t> begins = {0};
  for (const auto& patch : plan.patches)
    begins.push_back(patch.end);
  std::int64_t width = plan.latent_width;
  for (std::size_t level = 0; level < unet.levels.size(); ++level) {
    begins_.push_back(begins);
    widths_.push_back(width);
    for (auto& begin : begins)
      begin = (begin + 1) / 2;
    width = (width + 1) / 2;
  }
}

UNetShares::Bytes UNetShares::bytes(const spec::UNetSite& site, int patch, Bytes batch) const {
  const auto& begins = begins_.at(site.level);
  const Bytes rows = begins[patch + 1] - begins[patch];
  const Bytes row = batch * site.width * widths_.at(site.level);
  switch (site.kind) {
    case Kind::conv:
      return rows > 0 ? 2 * row * element_size(plan_) : 0;
    case Kind::norm:
      return 2 * batch * site.width * 8;
    case Kind::attention:
      break;
  }
  return 2 * rows * row * element_size(plan_);
}

std::uint64_t element_size(const Plan& plan) {
  return element_bytes(plan.request.dtype);
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

wire::RowRange patches_of(const Plan& plan, int sequence_rank) {
  return split_evenly(static_cast<int>(plan.patches.size()), plan.degrees.sp())[sequence_rank];
}

}  // namespace troupe::plan
