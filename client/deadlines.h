#pragma once
#include <chrono>

namespace troupe {

/// Deadline for a controller's answer.
inline constexpr std::chrono::milliseconds kAnswerDeadline = std::chrono::seconds(30);
/// Deadline for a blob to arrive.
inline constexpr std::chrono::milliseconds kBlobDeadline = std::chrono::minutes(10);

}  // namespace troupe
