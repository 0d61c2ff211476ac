#pragma once
#include <chrono>

namespace troupe {

/// Until a controller answers.
inline constexpr std::chrono::milliseconds kAnswerDeadline = std::chrono::seconds(30);
/// Until a blob is here.
inline constexpr std::chrono::milliseconds kBlobDeadline = std::chrono::minutes(10);

}  // namespace troupe
