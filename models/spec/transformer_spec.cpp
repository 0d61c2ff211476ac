#include "models/spec/transformer_spec.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "models/spec/model_plugin.h"

namespace troupe::spec {

std::int64_t TransformerFacts::attentions_before(std::int64_t block) const {
  std::int64_t count = block;
  for (std::int64_t i = 0; i < block; ++i)
    count += blocks[i].picture_attention ? 1 : 0;
  return count;
}

std::int64_t TransformerFacts::skip_width(std::int64_t first, std::int64_t last,
                                          std::int64_t later_first, std::int64_t later_last) const {
  return count_skip_connections(skip_from, first, last, later_first, later_last) * inner_dim();
}

std::int64_t TransformerFacts::edge_width(std::int64_t first, std::int64_t last,
                                          std::int64_t block) const {
  return inner_dim() + skip_width(0, first, block, last) +
         skip_width(first, block, block, num_layers);
}

TransformerSpec::TransformerSpec(TransformerFamily of)
    : TransformerFacts(std::visit([](const auto& spec) { return facts_of(spec); }, of)),
      family(std::move(of)),
      kept(std::visit([](const auto& spec) { return planned_tensors(spec); }, family)) {}

TransformerSpec read_transformer_spec(const ConfigReader& config,
                                      const std::string& fallback_class) {
  const std::string name = config.text_or("_class_name", fallback_class);
  std::optional<TransformerFamily> found;
  std::string known;
  each_family([&]<class Family>(std::type_identity<Family>) {
    for (const std::string_view own : Family::kClasses) {
      if (own == name) found = Family::read(config);
      known.append(known.empty() ? "" : ", ").append(own);
    }
  });
  if (const auto* family = user_models().family_of(name); family && !found)
    found = UserSpec{name, config.all(), family->read(config)};
  for (const auto& own : user_models().classes())
    known += ", " + own;
  if (!found) config.refuse("_class_name", "is not supported (supported: " + known + ")");
  return TransformerSpec(std::move(*found));
}

std::vector<PlannedTensor> planned_tensors(const TransformerSpec& spec) {
  return std::visit([](const auto& family) { return planned_tensors(family); }, spec.family);
}

std::vector<ExpectedTensor> expected_tensors(const TransformerSpec& spec) {
  std::vector<ExpectedTensor> expected;
  for (auto& planned : planned_tensors(spec))
    expected.push_back(std::move(planned.tensor));
  return expected;
}

bool is_ignorable_tensor(const TransformerSpec& spec, std::string_view name) {
  return std::visit(
      [&]<class Family>(const Family&) {
        if constexpr (requires { Family::kUnused; })
          return std::ranges::find(Family::kUnused, name) != std::end(Family::kUnused);
        return false;
      },
      spec.family);
}

std::uint64_t streamed_bytes(const TransformerSpec& spec, const TransformerPart& part,
                             std::uint64_t element, KeptAs as) {
  auto some = part;
  const auto of = [&](std::int64_t first, std::int64_t last) {
    some.first_block = first, some.last_block = last;
    return kept_bytes(spec, some, element, as);
  };
  const std::int64_t count = part.last_block - part.first_block;
  const std::uint64_t rest = of(part.first_block, part.first_block);
  if (count <= 2) return of(part.first_block, part.last_block);
  std::uint64_t most = 0, before = of(part.last_block - 1, part.last_block) - rest;
  for (std::int64_t block = part.first_block; block < part.last_block; ++block) {
    const std::uint64_t own = of(block, block + 1) - rest;
    most = std::max(most, before + own);
    before = own;
  }
  return rest + most;
}

double default_cache_threshold(StepCacheRule rule) {
  return rule == StepCacheRule::teacache ? 0.25 : 0.05;
}

std::vector<double> teacache_polynomial(const TransformerSpec& transformer) {
  if (std::holds_alternative<FluxSpec>(transformer.family))
    return {4.98651651e+02, -2.83781631e+02, 5.58554382e+01, -3.82021401e+00, 2.64230861e-01};
  if (std::holds_alternative<WanSpec>(transformer.family) && transformer.beside_channels == 0) {
    constexpr std::int64_t kWidth1B = 1536;
    constexpr std::int64_t kWidth14B = 5120;
    if (transformer.inner_dim() == kWidth1B)
      return {2.39676752e+03, -1.31110545e+03, 2.01331979e+02, -8.29855975e+00, 1.37887774e-01};
    if (transformer.inner_dim() == kWidth14B)
      return {-5784.54975374, 5449.50911966, -1811.16591783, 256.27178429, -13.02252404};
  }
  return {1, 0};
}

}  // namespace troupe::spec
