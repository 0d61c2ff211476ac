#pragma once
#include <cstddef>

#include "transport/wire/actor_messages.h"
#include "transport/wire/blob_messages.h"
#include "transport/wire/call_messages.h"
#include "transport/wire/client_messages.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"
#include "transport/wire/host_messages.h"
#include "transport/wire/inspect_messages.h"
#include "transport/wire/mux_frames.h"
#include "transport/wire/plugin_messages.h"
#include "transport/wire/session.h"
#include "transport/wire/tensor_messages.h"
#include "transport/wire/user_messages.h"

/// Every message that goes over the wire, for tests that must not forget one. `every_message_test`
/// counts them in the headers.
namespace troupe::wire {

template <class... Ms>
struct MessageList {
  static constexpr std::size_t kCount = sizeof...(Ms);
  /// visit(M{}) for each.
  template <class Visit>
  static void each(Visit&& visit) {
    (visit(Ms{}), ...);
  }
};

using EveryMessage =
    MessageList<LoadStage, StageLoaded, ConnectGroups, GroupsConnected, BeginJob, RunTasks,
                TaskDone, TaskFailed, EndJob, ActorJobStats, AbortEpoch, Unload, Shutdown,
                BlobRequest, BlobChunk, SubmitJob, JobAccepted, JobProgress, JobFinished, WaitJob,
                CancelJob, ListJobs, JobList, GetStatus, ClusterStatus, StopCluster, Done,
                GetMailbox, MailboxReport, GetTensors, TensorReport, GetSlice, TensorSlice,
                GetLatents, JobLatents, GetLatentRows, LatentRows, RenderLatents, Rendered,
                ControlJob, InjectFault, HoldChanged, GetDocument, Document, GetLogs, LogLines,
                ReadClock, ClockReading, Hello, Welcome, Refuse, Heartbeat, Goodbye, Notice,
                Failure, Ping, Pong, SpawnActor, ActorAddress, FindActor, KillActor, ListActors,
                ActorList, ListClasses, ClassList, WatchActor, ActorDied, CreateActor, ActorCreated,
                ActorCalls, CallResults, ReleaseValues, StartProcess, ProcessStarted, SignalProcess,
                ProcessWrote, ProcessEnded, DrainPlaces, MuxFrames, CheckPlugins, PluginsChecked>;

}  // namespace troupe::wire
