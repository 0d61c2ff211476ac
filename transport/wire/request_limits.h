#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace troupe::wire {

// What a request may have at most, whatever the model: the controller refuses more, and commands
// say so before they ask it.

/// A request travels in one message to every actor, and its text comes back in the report and in
/// each PNG.
inline constexpr std::size_t kMaxPromptBytes = 16 << 10;
inline constexpr std::size_t kMaxTextBytes = 256
                                             << 10;  // of all prompts, the negative one included
/// The time that cleaning takes may grow with the square of a prompt's length: seconds beyond this.
inline constexpr std::size_t kMaxCleanedBytes = 4096;
inline constexpr std::int64_t kMaxPictures = 4096;
inline constexpr std::int64_t kMaxFrames = 4097;
inline constexpr std::int64_t kMaxPixels = 16384;  // of a side
inline constexpr std::int32_t kMaxTextTokens = 4096;
inline constexpr std::size_t kMaxImages = 4;       // that a model takes beside the text
inline constexpr std::size_t kMaxControlNets = 8;  // and as many control pictures
inline constexpr std::size_t kMaxLoras = 64;
inline constexpr double kMaxLoraScale = 1000;
inline constexpr int kMaxActors = 1024;            // of a cluster
inline constexpr std::int32_t kMaxPriority = 100;  // and as much below 0
inline constexpr std::size_t kMaxShareBytes = 64;  // of the name of whom a job counts for
/// Deadline for all bytes that a job brings along to come to the controller.
inline constexpr std::chrono::minutes kUploadDeadline{10};
/// Bound of typed numbers where there is no other: patches, steps of a list.
inline constexpr int kMaxDegree = 1 << 20;

}  // namespace troupe::wire
