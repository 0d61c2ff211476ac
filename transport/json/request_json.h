#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "transport/wire/job.h"

namespace troupe::wire {

/// Every setting of a planned request that decides its pictures, but for the prompts, by the names
/// of docs/commands.md. `height` and `width` are the picture's, `computed_height` and
/// `computed_width` those of the computation. `steps` are what the client asked for: with those
/// that a picture to begin with leaves out.
nlohmann::json request_json(const ImageRequest& request, int sampler_steps, int skipped_steps);

/// Returns a value of the settings' line of a picture's `parameters` text as the web UI writes it:
/// as JSON where it has signs that end a value.
std::string setting_text(const std::string& value);

/// A document on one line. Texts that are no UTF-8 come out with U+FFFD in their place.
std::string json_text(const nlohmann::json& document);

}  // namespace troupe::wire
