#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/client.h"
#include "web/fields.h"

namespace troupe::web {

/// A request of the AUTOMATIC1111 web UI's txt2img or img2img.
struct WebuiCall {
  Submission submission;  // the model still as the client named it; "" = none was named
  /// Request by which the highres fix paints each picture again, larger, with the picture's own
  /// seed. The first pass's pictures take the place of the one that it has to begin with.
  std::optional<ImageRequest> second_pass = {};
  /// Settings that the web UI writes of the second pass into pictures' parameters, but for the
  /// strength.
  nlohmann::ordered_json second_pass_says = {};
  std::optional<double> denoising_strength = {};  // of image to image, or of the second pass
  int batch_size = 1;
  std::string second_model = {};  // model that is named for the second pass; "" = the first's
  bool send_images = true;
  FieldWords words = {};
  std::vector<std::string> warnings;  // what the web UI would have done otherwise, unasked
};
/// `call`: kTxt2Img or kImg2Img; `seed`: where none is given. Picture after picture, batch after
/// batch, is one job. Throws ApiError naming the field, for what call_fields.def refuses, too.
/// Pure.
WebuiCall parse_webui(const std::string& body, Call call, std::uint64_t seed);

/// Returns the `parameters` text of a picture that a second pass has painted again: that of the
/// first pass's picture, with what the web UI writes of the second.
std::string parameters_of_second_pass(std::string first, double denoising_strength,
                                      const nlohmann::ordered_json& says);
/// Returns a value of a `parameters` text's settings, as "Sampler"; "" where it is not there.
std::string setting_of(const std::string& parameters, const std::string& name);

/// The settings of override_settings, or of POST /sdapi/v1/options, an object: the model that is
/// asked for, or "". Errors name a setting under `within` ("" = by itself). Throws ApiError.
std::string model_of_settings(const nlohmann::json& settings, const std::string& within);

enum class PromptKind : std::uint8_t { positive, negative };

/// The words of a prompt in the syntax of the AUTOMATIC1111 web UI: without comments, and with
/// escaped brackets as what they are. What would weigh words, change them in mid-run or load
/// networks is refused by name; with `cut_networks` networks are cut out, as the web UI does where
/// they are disabled. A negative prompt has neither networks nor AND. Throws ApiError naming
/// `field`. Takes time in proportion to the text. Source: the web UI's modules/prompt_parser.py,
/// extra_networks.py and processing_scripts/comments.py.
std::string words_of_prompt(const std::string& field, const std::string& prompt, PromptKind kind,
                            bool cut_networks = false);

}  // namespace troupe::web
