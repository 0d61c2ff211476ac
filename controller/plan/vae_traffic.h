#pragma once
#include <cstdint>
#include <vector>

#include "controller/plan/plan.h"
#include "controller/plan/traffic.h"

namespace troupe::plan {

/// Returns the bytes of an element as the autoencoder computes it: AutoencoderKL::decode_dtype.
std::uint64_t coded_bytes(const Plan& plan, const spec::VaeSpec& vae);

/// Bytes that one of the ranks which share the autoencoder's work sends the others of them in a
/// job. All but `collected` is 0 where they share tiles instead of rows.
struct VaeTraffic {
  std::uint64_t halos = 0;      ///< rows that neighbours' convolutions read
  std::uint64_t moments = 0;    ///< moments of group norms, summed over all rows
  std::uint64_t attention = 0;  ///< keys and values of the own rows, to all others
  std::uint64_t collected = 0;  ///< finished rows or tiles, to the first of them

  std::uint64_t total() const { return halos + moments + attention + collected; }
};

/// Returns the bytes for the pictures, or the videos, that come out; nothing for a rank that
/// decodes alone or not at all.
VaeTraffic decode_traffic(const Plan& plan, const spec::ModelSpec& model, int rank);
/// Returns the bytes for the pictures that are encoded in the request's size, or a video's frames;
/// nothing where there is none.
VaeTraffic encode_traffic(const Plan& plan, const spec::ModelSpec& model, int rank);

/// Adds the bytes of both as "vae"; and as "rows" the latents that ranks send to the decoders, at
/// the end and for each preview or latents of a step that are asked for. `all` by world rank.
void add_vae_traffic(const Plan& plan, const spec::ModelSpec& model, std::vector<RankTraffic>& all);

}  // namespace troupe::plan
