#include "models/unet/patch_exchange.h"

#include <stdexcept>
#include <string>

namespace troupe::models::unet {

std::vector<at::Tensor> LocalExchange::fresh(const Site& site, const std::vector<at::Tensor>& own,
                                             bool keep) {
  if (keep && patches_ > 1) kept_[site] = own;
  return own;
}

std::vector<at::Tensor> LocalExchange::stale(const Site& site, const std::vector<at::Tensor>& own,
                                             bool keep) {
  const auto found = kept_.find(site);
  if (found == kept_.end()) {
    throw std::logic_error("[unet] layer " + std::to_string(site.index) + " of kind " +
                           std::to_string(static_cast<int>(site.kind)) +
                           " has no values of an earlier step: the first step is synchronous");
  }
  const std::vector<at::Tensor> before = found->second;
  if (keep) found->second = own;
  return before;
}

std::int64_t LocalExchange::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : bytes_by_kind())
    sum += bytes;
  return sum;
}

std::map<Site::Kind, std::int64_t> LocalExchange::bytes_by_kind() const {
  std::map<Site::Kind, std::int64_t> result;
  for (const auto& [site, values] : kept_) {
    for (const at::Tensor& value : values)
      result[site.kind] += static_cast<std::int64_t>(value.nbytes());
  }
  return result;
}

}  // namespace troupe::models::unet
