#pragma once
#include <optional>
#include <string>

#include "base/choice.h"
#include "models/image/clip_file.h"
#include "models/image/load_picture.h"
#include "troupe/client.h"
#include "web/fields.h"

namespace troupe {

namespace web {
enum class PictureFormat { png, jpeg, webp, webm, mp4 };
}
template <>
inline constexpr auto kNamesOf<web::PictureFormat> =
    std::to_array<std::string_view>({"png", "jpeg", "webp", "webm", "mp4"});

}  // namespace troupe

namespace troupe::web {

/// Kind of a picture's file; webm and mp4 are of clips.
struct PictureKind {
  PictureFormat format = PictureFormat::png;
  int quality = 90;  // of all but png, 1 to 100; 100 = webp without loss
};
std::string media_type_of(PictureFormat format);
/// Returns the format of a video file; nothing for a picture's format.
std::optional<models::ClipFormat> clip_format(PictureFormat format);
/// Returns the format of that name. Throws ApiError naming `field` if there is none.
PictureFormat picture_format(const std::string& field, const std::string& name);

/// POST /api/v1/jobs.
struct JobCall {
  Submission submission;  // the model still as the client named it
  PictureKind kind;
  FieldWords words;
};
/// Throws ApiError, as the others here. Pure.
JobCall parse_job(const std::string& body);

/// Returns the fields of POST /api/v1/jobs that no table has: what the job begins with, how it
/// stands among others, and what is told of it.
nlohmann::json job_fields_json();

/// POST /v1/images/generations, /v1/images/edits.
struct ImagesCall {
  Submission submission;
  PictureKind kind;
  bool edit = false;
  bool stream = false;
  bool url = false;  // answered by links, not by bytes
  int partial_images = 0;
  FieldWords words;
};
/// `fields`: of the body; `seed`: where none is given. Extra fields of other servers and of ours
/// are taken at the top level.
ImagesCall parse_images(Fields fields, bool edit, std::uint64_t seed);
/// The body of /v1/images/edits as fields.
Fields edit_fields(const std::string& content_type, const std::string& body);

/// A form's fields; the files of parts with one of the names `images` are the `images`, that of
/// `mask` the `mask_image`, white where it is transparent.
Fields form_fields(const std::string& content_type, const std::string& body,
                   const std::vector<std::string>& images,
                   std::map<std::string, std::string> aliases);

/// Returns the bytes that a field's base64 stands for.
std::string bytes_of_field(const std::string& field, const std::string& base64);
/// Returns the picture that a field has as base64, as taken_picture has it. Throws ApiError.
std::string picture_of_field(const std::string& field, const std::string& base64,
                             models::AlphaUse alpha = models::AlphaUse::dropped);

/// Refuses a request whose answer is to be pictures, but that asks for latents alone.
void need_pictures(const ImageRequest& request);
/// Asks for one frame, also of a model that makes clips; refuses a request for more.
void take_one_frame(ImageRequest& request);

/// POST /v1/videos.
struct VideoCall {
  Submission submission;
  FieldWords words;
};
VideoCall parse_video(Fields fields, std::uint64_t seed);

/// The body of POST /api/v1/jobs that makes what this PNG, MP4 or WebM holds again. What a picture
/// was made from, but does not hold, must be `brought` along, by these names: init_image,
/// mask_image, images, last_image, control_images, init_latents, prompt_embeds. Throws ApiError
/// naming the first one that is not.
nlohmann::json parameters_of(const std::string& file, const std::set<std::string>& brought = {});

/// Names of other servers' fields, to ours.
const std::map<std::string, std::string>& other_names();

/// OpenAI's "1024x768"; "auto" leaves both 0.
void parse_size(const std::string& text, int& width, int& height);

}  // namespace troupe::web
