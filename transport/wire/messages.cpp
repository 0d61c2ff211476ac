#include "transport/wire/client_messages.h"

namespace troupe::wire {

const char* to_string(JobState state) {
  switch (state) {
    case JobState::queued:
      return "queued";
    case JobState::loading:
      return "loading";
    case JobState::running:
      return "running";
    case JobState::succeeded:
      return "succeeded";
    case JobState::failed:
      return "failed";
    case JobState::cancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace troupe::wire
