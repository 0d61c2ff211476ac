#include "transport/wire/client_messages.h"
#include "transport/wire/user_messages.h"

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

const char* to_string(Placement placement) {
  switch (placement) {
    case Placement::pack:
      return "pack";
    case Placement::spread:
      return "spread";
    case Placement::together:
      return "together";
  }
  return "unknown";
}

const char* to_string(UserActorState state) {
  switch (state) {
    case UserActorState::starting:
      return "starting";
    case UserActorState::running:
      return "running";
    case UserActorState::restarting:
      return "restarting";
    case UserActorState::dead:
      return "dead";
  }
  return "unknown";
}

}  // namespace troupe::wire
