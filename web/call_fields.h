#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace troupe::web {

/// Calls that take a request: those of other servers' APIs, and kJobs, our own. kSettings are the
/// web UI's settings.
enum Call : std::uint8_t {
  kTxt2Img = 1,
  kImg2Img = 2,
  kSettings = 4,
  kGenerations = 8,
  kEdits = 16,
  kVideos = 32,
  kJobs = 64,
  kWebui = kTxt2Img | kImg2Img,
  kImages = kGenerations | kEdits
};

/// Treatment of a field. taken: the call's parser reads it; harmless: no value changes anything
/// here; refused: all but some values are.
enum class Treatment : std::uint8_t { taken, harmless, refused };

/// A line of call_fields.def.
struct CallField {
  int calls;  // a sum of Calls
  std::string_view name;
  Treatment treatment;
  std::string_view passing;  // of what is refused: the values that are not, a JSON list
  std::string_view says;     // for people: how the field is treated, or what to do instead
};

inline constexpr auto kCallFields = std::to_array<CallField>({
#define CALL_FIELD(calls, name, treatment, passing, says) \
  {calls, name, Treatment::treatment, passing, says},
#include "web/call_fields.def"
});

}  // namespace troupe::web
