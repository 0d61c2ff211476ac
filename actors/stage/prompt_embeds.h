#pragma once
#include <string>
#include <vector>

#include "models/dit/diffusion_transformer.h"
#include "models/spec/model_spec.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

/// The text encoders' output that a request brings along in `bytes`, for this replica's pictures: a
/// row each, and where there are two branches the negative one's rows first. float32 on the CPU.
/// Throws std::invalid_argument naming a tensor that does not fill its shape or is not finite, and
/// a mask that is anything but ones, then zeros.
std::vector<models::EncoderOutput> read_prompt_embeds(const spec::ModelSpec& model,
                                                      const wire::BeginJob& begin, bool guided,
                                                      const std::string& bytes);

}  // namespace troupe::actors
