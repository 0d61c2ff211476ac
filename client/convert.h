#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/wire/client_messages.h"
#include "troupe/client.h"

/// Conversion between the public values of client.h and the messages of the wire.
namespace troupe::client {

/// Converts everything but blobs. Sizes left open are taken from the initial latents, and the
/// number of prompts from prompt embeds. Error: bad_request, for a choice that does not exist.
Result<wire::JobSpec> to_wire(const Submission& submission);

/// Returns why the initial latents are none, before anybody is asked. What shape a model's have the
/// controller knows.
std::optional<Error> check_init_latents(const ImageRequest& request);

/// Returns why the prompt embeds do not go with the request, or are not such tensors: a shape that
/// their values do not fill, a value that is not finite.
std::optional<Error> check_prompt_embeds(const ImageRequest& request);

/// Number and size of a blob in a request.
struct BlobFields {
  std::uint64_t& blob;
  std::uint64_t& size;
};

/// Input that travels beside the request in a blob, and what names the blob in the request.
struct Input {
  std::function<BlobFields(wire::ImageRequest&)> fields;
  std::string bytes;
};
std::vector<Input> inputs_of(const ImageRequest& request);

/// Returns latents; nothing when bytes and shape do not go together.
std::optional<Latents> latents_from(const std::string& bytes,
                                    const std::vector<std::int64_t>& shape);
/// Appends a replica's pictures to those that are there. False when their sizes differ.
bool append_latents(std::optional<Latents>& whole, Latents part);

/// Returns the error for a job that did not succeed.
Error job_error(const wire::JobFinished& finished);

std::vector<JobInfo> to_public(wire::JobList list);
ClusterInfo to_public(wire::ClusterStatus status);

/// Returns why one of a request's pictures cannot be sent: it is of another
/// format than PNG, JPEG and WebP, which is named, a PNG that is cut off or damaged, or too large.
std::optional<Error> check_pictures(const ImageRequest& request);

}  // namespace troupe::client
