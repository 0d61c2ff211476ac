#pragma once
#include <optional>
#include <string>

#include "transport/wire/client_messages.h"
#include "troupe/client.h"

/// Between the public values of client.h and the messages of the wire.
namespace troupe::client {

/// Everything but the initial latents' blob. Sizes left open are taken from the initial latents.
/// Error: bad_request, for a choice that there is not.
Result<wire::JobSpec> to_wire(const Submission& submission);

/// Why the initial latents do not go with the request, before anybody is asked.
std::optional<Error> check_init_latents(const ImageRequest& request);

/// The bytes of the values, as a blob holds them.
std::string latents_bytes(const Latents& latents);
/// Null when bytes and shape do not go together.
std::optional<Latents> latents_from(const std::string& bytes,
                                    const std::vector<std::int64_t>& shape);
/// Puts a replica's pictures behind those that are there. False when their sizes differ.
bool append_latents(std::optional<Latents>& whole, Latents part);

/// The end of a job that did not succeed.
Error job_error(const wire::JobFinished& finished);

std::vector<JobInfo> to_public(wire::JobList list);
ClusterInfo to_public(wire::ClusterStatus status);

}  // namespace troupe::client
