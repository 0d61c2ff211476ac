#include "client/convert.h"

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "models/image/picture_file.h"
#include "models/image/png_text.h"
#include "transport/calls/errors.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"

namespace troupe::client {
namespace {

static_assert(std::endian::native == std::endian::little, "latents travel little-endian");

Error refused(wire::JobField field, const std::string& why) {
  return {ErrorCode::bad_request, why, to_string(field)};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

/// Number of elements, or nothing for a shape that makes no sense or is over 2^40.
std::optional<std::uint64_t> element_count(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size <= 0 || count > (std::uint64_t{1} << 40) / static_cast<std::uint64_t>(size)) return {};
    count *= static_cast<std::uint64_t>(size);
  }
  return count;
}

/// Prompts that are given by their embeds.
std::size_t rows_of_embeds(const ImageRequest& request) {
  const auto found = request.prompt_embeds.find("prompt_embeds");
  if (found == request.prompt_embeds.end() || found->second.shape.empty()) return 0;
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(found->second.shape.front(), 0, wire::kMaxPictures));
}

std::string tensor_bytes(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size() * sizeof(float)};
}

template <class T>
void set_field(T& to, const T& from, const wire::RequestField&, Error&) {
  to = from;
}

void set_field(std::vector<wire::Lora>& to, const std::vector<Lora>& from,
               const wire::RequestField&, Error&) {
  for (const Lora& lora : from)
    to.push_back({lora.path, lora.scale, lora.of_second});
}

void set_field(std::vector<wire::Embedding>& to, const std::vector<Embedding>& from,
               const wire::RequestField&, Error&) {
  for (const Embedding& embedding : from)
    to.push_back({embedding.path, embedding.token});
}

/// `wrong` says what the first name was that there is not.
template <Choice E>
void set_field(E& to, const std::string& from, const wire::RequestField& field, Error& wrong) {
  if (const auto choice = parse_choice<E>(from)) {
    to = *choice;
  } else if (wrong.what.empty()) {
    wrong = refused(field.field, "[plan] `" + std::string(field.name) + "` is \"" + from +
                                     "\": " + choices_text(choice_words<E>()));
  }
}

/// Sets what a picture's header says of its pixels. Throws wire::BadField.
void describe(wire::JobField field, const std::string& file, std::int32_t& height,
              std::int32_t& width) {
  if (file.empty()) return;
  try {
    const auto header = models::read_picture_header(file);
    height = static_cast<std::int32_t>(header.height());
    width = static_cast<std::int32_t>(header.width());
  } catch (const std::runtime_error& error) {
    throw wire::BadField(field, "`" + to_string(field) + "` " + error.what());
  }
}

/// Returns a picture as it is described on the wire. Throws wire::BadField.
wire::SentPicture sent_picture(wire::JobField field, const std::string& file) {
  wire::SentPicture picture;
  picture.bytes = file.size();
  describe(field, file, picture.height, picture.width);
  return picture;
}

}  // namespace

Result<wire::JobSpec> to_wire(const Submission& submission) {
  const ImageRequest& from = submission.request;
  wire::JobSpec spec;
  spec.model = submission.model;
  spec.priority = submission.priority;
  spec.share = submission.share;
  spec.elastic = submission.elastic;
  spec.may_batch = submission.may_batch;
  spec.on_behalf_of = submission.on_behalf_of;
  const Parallelism& degrees = submission.parallelism;
#define DEGREE_FIELD(name, option, most, help) spec.parallelism.name = degrees.name;
#include "transport/wire/degree_fields.def"
  spec.parallelism.stages = {degrees.stages.begin(), degrees.stages.end()};
  spec.parallelism.automatic = degrees.automatic;
  wire::ImageRequest& to = spec.request;
  Error wrong;
#define REQUEST_FIELD(type, name, initial, ...) \
  set_field(to.name, from.name, wire::kRequestFields.name, wrong);
#include "transport/wire/request_fields.def"
  for (const auto* given : {&from.timesteps, &from.sigmas})
    if (!given->empty()) to.steps = static_cast<std::int32_t>(given->size());
  if (!wrong.what.empty()) return wrong;
  if (from.init_latents) {
    to.init_latents_bytes = from.init_latents->data.size() * sizeof(float);
    to.init_latents_shape = from.init_latents->shape;
  }
  to.init_image_bytes = from.init_image.size();
  to.mask_image_bytes = from.mask_image.size();
  to.images_as_taken = from.images_as_taken;
  try {
    describe(wire::JobField::init_image, from.init_image, to.init_image_height,
             to.init_image_width);
    describe(wire::JobField::mask_image, from.mask_image, to.mask_image_height,
             to.mask_image_width);
    for (const auto& image : from.images)
      to.images.push_back(sent_picture(wire::JobField::images, image));
    to.last_image = sent_picture(wire::JobField::last_image, from.last_image);
    for (const auto& image : from.control_images)
      to.control_images.push_back(sent_picture(wire::JobField::control_images, image));
  } catch (const wire::BadField& error) {
    return refused(error.field, error.what());
  }
  for (const auto& [name, tensor] : from.prompt_embeds) {
    to.prompt_embeds.push_back({name, tensor.shape});
    to.prompt_embeds_bytes += tensor.data.size() * sizeof(float);
  }
  if (const auto prompts = rows_of_embeds(from); prompts > 0 && to.prompts.empty())
    to.prompts.resize(prompts);
  return spec;
}

std::optional<Error> check_init_latents(const ImageRequest& request) {
  if (!request.init_latents) return {};
  const Latents& latents = *request.init_latents;
  const auto refuse = [&](const std::string& why) {
    return refused(wire::JobField::init_latents,
                   "init_latents of shape " + shape_text(latents.shape) + ": " + why);
  };
  const auto count = element_count(latents.shape);
  if (latents.shape.size() != 4 || !count) return refuse("not [pictures, channels, rows, columns]");
  if (*count != latents.data.size())
    return refuse(fmt::format("holds {} values, not {}", latents.data.size(), *count));
  return {};
}

std::optional<Error> check_prompt_embeds(const ImageRequest& request) {
  if (request.prompt_embeds.empty()) return {};
  const auto refuse = [](const std::string& why) {
    return refused(wire::JobField::prompt_embeds, why);
  };
  for (const auto& [name, tensor] : request.prompt_embeds) {
    const auto count = element_count(tensor.shape);
    if (!count || *count != tensor.data.size()) {
      return refuse(name + " of shape " + shape_text(tensor.shape) + " holds " +
                    counted(tensor.data.size(), "value"));
    }
    if (const auto odd = first_not_finite(tensor.data))
      return refuse(fmt::format("{} is not finite at element {}", name, *odd));
  }
  return {};
}

std::vector<Input> inputs_of(const ImageRequest& request) {
  using Wire = wire::ImageRequest;
  std::vector<Input> inputs;
  using Member = std::uint64_t Wire::*;
  const auto add = [&](Member blob, Member size, std::string bytes) {
    inputs.push_back({[blob, size](Wire& to) {
                        return BlobFields{to.*blob, to.*size};
                      },
                      std::move(bytes)});
  };
  if (request.init_latents) {
    add(&Wire::init_latents_blob, &Wire::init_latents_bytes, tensor_bytes(*request.init_latents));
  } else if (!request.init_image.empty()) {
    add(&Wire::init_image_blob, &Wire::init_image_bytes, request.init_image);
  }
  if (!request.mask_image.empty())
    add(&Wire::mask_image_blob, &Wire::mask_image_bytes, request.mask_image);
  for (std::size_t i = 0; i < request.images.size(); ++i)
    inputs.push_back({[i](Wire& to) {
                        return BlobFields{to.images.at(i).blob, to.images[i].bytes};
                      },
                      request.images[i]});
  if (!request.last_image.empty())
    inputs.push_back({[](Wire& to) {
                        return BlobFields{to.last_image.blob, to.last_image.bytes};
                      },
                      request.last_image});
  for (std::size_t i = 0; i < request.control_images.size(); ++i)
    inputs.push_back({[i](Wire& to) {
                        auto& image = to.control_images.at(i);
                        return BlobFields{image.blob, image.bytes};
                      },
                      request.control_images[i]});
  if (!request.prompt_embeds.empty()) {
    std::string bytes;
    for (const auto& [name, tensor] : request.prompt_embeds)
      bytes += tensor_bytes(tensor);
    add(&Wire::prompt_embeds_blob, &Wire::prompt_embeds_bytes, std::move(bytes));
  }
  return inputs;
}

std::optional<Latents> latents_from(const std::string& bytes,
                                    const std::vector<std::int64_t>& shape) {
  const auto count = element_count(shape);
  if (!count || *count * sizeof(float) != bytes.size()) return {};
  Latents latents{.shape = shape, .data = std::vector<float>(*count)};
  std::memcpy(latents.data.data(), bytes.data(), bytes.size());
  return latents;
}

bool append_latents(std::optional<Latents>& whole, Latents part) {
  if (!whole) {
    whole = std::move(part);
    return true;
  }
  if (part.shape.empty() || part.shape.size() != whole->shape.size() ||
      !std::equal(part.shape.begin() + 1, part.shape.end(), whole->shape.begin() + 1)) {
    return false;
  }
  whole->shape[0] += part.shape[0];
  whole->data.insert(whole->data.end(), part.data.begin(), part.data.end());
  return true;
}

Error job_error(const wire::JobFinished& finished) {
  const std::string job = fmt::format("job {}", finished.job);
  Error error = calls::to_error(finished.failure);
  // Inside a job these mean its actors, not the link between client and controller.
  if (error.code == ErrorCode::timeout || error.code == ErrorCode::lost ||
      error.code == ErrorCode::protocol)
    error.code = ErrorCode::failed;
  // Nobody cancelled the job: its cluster was stopped.
  if (error.code == ErrorCode::cancelled) error.code = ErrorCode::stopped;
  if (finished.state == JobState::cancelled) error.code = ErrorCode::cancelled;
  if (error.what.empty()) {
    error.what = job + " was cancelled";
    if (error.code != ErrorCode::cancelled)
      error.what = job + " failed, and the controller gave no cause";
  } else if (error.what.find(job) == std::string::npos) {
    error.what = job + ": " + error.what;
  }
  return error;
}

std::vector<JobInfo> to_public(wire::JobList list) {
  const auto degrees = [](const wire::Parallelism& from) {
    Parallelism to;
#define DEGREE_FIELD(name, option, most, help) to.name = from.name;
#include "transport/wire/degree_fields.def"
    return to;
  };
  std::vector<JobInfo> jobs;
  for (wire::JobRow& row : list.jobs) {
    jobs.push_back({.id = row.id,
                    .state = row.state,
                    .prompt = std::move(row.prompt),
                    .pictures = row.pictures,
                    .step = row.step,
                    .steps = row.steps,
                    .seconds = row.seconds,
                    .cause = std::move(row.cause),
                    .priority = row.priority,
                    .share = std::move(row.share),
                    .batch = row.batch,
                    .with_jobs = {},
                    .not_batched = std::move(row.not_batched),
                    .queue_position = row.queue_position,
                    .model = std::move(row.model),
                    .seed = row.seed,
                    .own_seeds = row.own_seeds,
                    .parallelism = degrees(row.degrees),
                    .on_behalf_of = std::move(row.on_behalf_of)});
  }
  std::map<std::uint64_t, std::vector<std::uint64_t>> batches;
  for (const JobInfo& job : jobs) {
    if (job.batch != 0) batches[job.batch].push_back(job.id);
  }
  for (JobInfo& job : jobs) {
    if (job.batch == 0) continue;
    job.with_jobs = batches.at(job.batch);
    std::erase(job.with_jobs, job.id);
  }
  return jobs;
}

ClusterInfo to_public(wire::ClusterStatus status) {
  ClusterInfo info;
  info.version = std::move(status.version);
  info.host = std::move(status.host);
  info.endpoint = std::move(status.endpoint);
  info.model = std::move(status.model);
  info.pid = status.pid;
  info.uptime_seconds = status.uptime_seconds;
  info.jobs_queued = status.jobs_queued;
  info.jobs_running = status.jobs_running;
  info.jobs_ended = status.jobs_ended;
  info.recent_failures = std::move(status.recent_failures);
  for (wire::ActorRow& row : status.actors) {
    ActorInfo actor;
    actor.id = row.id;
    actor.incarnation = row.incarnation;
    actor.state = row.state;
    actor.host = std::move(row.host);
    actor.device = std::move(row.device);
    actor.doing = std::move(row.doing);
    actor.pid = row.pid;
    actor.local_rank = row.local_rank;
    actor.restarts = row.restarts;
    actor.memory_bytes = row.memory_bytes;
    for (wire::GroupRow& group : row.groups) {
      actor.groups.push_back({std::move(group.axis), std::move(group.ranks), group.rank_in_group});
    }
    info.actors.push_back(std::move(actor));
  }
  return info;
}

namespace {

using models::kPngSignature;
using models::png_number;

constexpr std::size_t kHeaderData = 13;

std::uint32_t checksum(std::string_view bytes) {
  boost::crc_32_type sum;
  sum.process_bytes(bytes.data(), bytes.size());
  return sum.checksum();
}

bool is_name(std::string_view name) {
  for (const char letter : name) {
    const char lower = static_cast<char>(letter | 0x20);
    if (lower < 'a' || lower > 'z') return false;
  }
  return true;
}

/// True if a picture cannot be read without the chunk; the case of the name's first letter says so.
bool is_critical(std::string_view name) {
  return name[0] >= 'A' && name[0] <= 'Z';
}

/// Returns what is wrong with a PNG, whose signature is right; "" if nothing is.
std::string wrong_with_png(std::string_view png) {
  bool pixels = false;
  for (std::size_t at = kPngSignature.size(); true;) {
    const std::string place = fmt::format(" at byte {}", at);
    if (png.size() < at + models::kPngChunkFrame) return "is cut off" + place + ", before its end";
    const std::uint32_t length = png_number(png, at);
    const auto name = png.substr(at + 4, 4);
    if (!is_name(name)) return "has no chunk" + place + ", where one should begin";
    if (length > png.size() - at - models::kPngChunkFrame) {
      return fmt::format("is cut off: its {} chunk{} has {} bytes, {} are left", name, place,
                         length, png.size() - at - 8);
    }
    if ((at == kPngSignature.size()) != (name == "IHDR") ||
        (name == "IHDR" && length != kHeaderData))
      return "has no proper header chunk (IHDR)";
    if (is_critical(name) &&
        checksum(png.substr(at + 4, length + 4)) != png_number(png, at + 8 + length))
      return "is damaged: its " + std::string(name) + " chunk" + place + " fails its checksum";
    pixels = pixels || name == "IDAT";
    if (name == "IEND") return pixels ? "" : "has no pixels (IDAT)";
    at += models::kPngChunkFrame + length;
  }
}

}  // namespace
namespace {

std::optional<Error> check_picture(const std::string& field, std::string_view file) {
  if (file.empty()) return {};
  if (file.starts_with(models::kPngSignature)) {
    const auto wrong = wrong_with_png(file);
    if (!wrong.empty()) return Error{ErrorCode::bad_request, field + " " + wrong, field};
  }
  try {
    models::read_picture_header(file);
    return {};
  } catch (const std::runtime_error& error) {
    return Error{ErrorCode::bad_request, field + " " + error.what(), field};
  }
}

}  // namespace

std::optional<Error> check_pictures(const ImageRequest& request) {
  if (auto error = check_picture("init_image", request.init_image)) return error;
  if (auto error = check_picture("mask_image", request.mask_image)) return error;
  for (const auto& image : request.images)
    if (auto error = check_picture("images", image)) return error;
  for (const auto& image : request.control_images)
    if (auto error = check_picture("control_images", image)) return error;
  return check_picture("last_image", request.last_image);
}

}  // namespace troupe::client
