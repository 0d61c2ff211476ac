#include "models/dit/stage_checks.h"

#include <sstream>

namespace troupe::models {

void refuse_shape(const char* family, const char* what, const at::Tensor& given,
                  at::IntArrayRef expected) {
  std::ostringstream text;
  text << "[" << family << "] " << what << " has shape ";
  if (given.defined()) text << given.sizes();
  text << ", expected " << expected;
  throw std::invalid_argument(text.str());
}

const StagePart& checked_part(const char* family, const StagePart& part, int64_t blocks) {
  std::ostringstream text;
  text << "[" << family << "] ";
  if (part.blocks.begin < 0 || part.blocks.end < part.blocks.begin || part.blocks.end > blocks) {
    text << "blocks " << part.blocks.begin << " to " << part.blocks.end << " of " << blocks;
    throw std::invalid_argument(text.str());
  }
  if (part.shard.degree < 1 || part.shard.rank < 0 || part.shard.rank >= part.shard.degree) {
    text << "shard " << part.shard.rank << " of " << part.shard.degree;
    throw std::invalid_argument(text.str());
  }
  return part;
}

void check_rows(const char* family, const char* who, int64_t patch, PictureSize size,
                TokenRows rows) {
  if (size.latent_height > 0 && size.latent_width > 0 && size.latent_height % patch == 0 &&
      size.latent_width % patch == 0 && rows.begin >= 0 && rows.begin < rows.end &&
      rows.end <= size.latent_height / patch) {
    return;
  }
  std::ostringstream text;
  text << "[" << family << "] " << who << ": latents of " << size.latent_height << " x "
       << size.latent_width << ", token rows " << rows.begin << " to " << rows.end
       << ", patch size " << patch;
  throw std::invalid_argument(text.str());
}

void check_latents(const char* family, const at::Tensor& latents, int64_t channels, int64_t patch,
                   PictureSize size, TokenRows rows) {
  check_rows(family, "embed", patch, size, rows);
  const int64_t height = (rows.end - rows.begin) * patch;
  if (latents.dim() != 4 || latents.size(1) != channels || latents.size(2) != height ||
      latents.size(3) != size.latent_width) {
    refuse_shape(family, "latents", latents, {-1, channels, height, size.latent_width});
  }
}

void require_block_0(const char* family, const StagePart& part) {
  if (part.blocks.begin > 0 || part.blocks.end < 1)
    throw std::logic_error("[" + std::string(family) + "] this stage holds no block 0");
}

BlockRange own_blocks(const char* family, const StagePart& part, const CallTokens& call) {
  const auto [first, last] = part.blocks;
  const auto [begin, end] = call.blocks.value_or(part.blocks);
  if (begin < first || end > last || begin > end) {
    throw std::invalid_argument("[" + std::string(family) + "] blocks " + std::to_string(begin) +
                                " to " + std::to_string(end) + " of a stage that holds " +
                                std::to_string(first) + " to " + std::to_string(last));
  }
  return {begin - first, end - first};
}

}  // namespace troupe::models
