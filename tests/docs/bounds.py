"""The limits of docs/security.md: what the page says, what the code says, and which test holds it to that.

A row of the page's table, by its first words, has bounds: the page's words, a file, what stands in it. The last is the
title of a test, or its beginning; "" where there is none yet.
"""

BOUNDS = {
    "the HTTP gateway": (
        [("4,096 connections", "web/server.h", "most_connections = 4096;"),
         ("1 GiB of memory for bodies", "web/server.h", "most_body_bytes = std::size_t{1} << 30;"),
         ("counts 5", "web/server.h", "memory_per_body_byte = 5;"),
         ("512 MiB of a key", "web/server.h", "most_body_bytes_of_one = std::size_t{512} << 20;"),
         ("1 GiB of answers", "web/server.h", "most_unread_bytes = std::size_t{1} << 30;"),
         ("10,000 links", "web/picture_links.h", "kMost = 10'000;")],
        "whole answers that are not read have a limit, and the largest goes"),
    "control message": (
        [("1 MiB of payload", "transport/wire/envelope.h", "kMaxPayload = 1u << 20;")],
        "a frame beyond the limit is cut off by ZeroMQ itself"),
    "container in a message": (
        [("16 deep", "transport/wire/archive.h", "kMaxDepth = 16;")],
        "nesting is bounded"),
    "connections that have said no hello": (
        [("a quarter of them from one address", "transport/control/accept_limiter.cpp", "kShareOfOne = 4;"),
         ("5 s", "transport/control/accept_limiter.cpp", "kHelloWithin{5000};")],
        "of too many pending connections of one address its oldest goes"),
    "ZeroMQ's handshake": (
        [("3 s", "transport/control/core.cpp", "handshake_ivl, 3000)")],
        "behind keys half a handshake has its time"),
    "peers of a controller": (
        [("4096", "transport/control/server.h", "max_peers = 4096;")],
        "more peers than a server takes are refused"),
    "requests of a peer that are not answered": (
        [("1,024", "transport/control/open_requests.h", "most = 1024;"),
         ("16 MiB", "transport/control/open_requests.h", "most_bytes = 16u << 20;"),
         ("8,192, 256 MiB", "transport/control/server.h", "{.most = 8192, .most_bytes = 256u << 20}")],
        "requests that are not answered are bounded in number"),
    "unread messages in ZeroMQ": (
        [("64 each", "controller/app/endpoints.cpp", "kUnread = 64;")],
        "a peer that does not read is given up"),
    "queue to a peer that does not read": (
        [("10,000 messages", "transport/control/types.h", "max_queued_messages = 10'000;"),
         ("64 MiB", "transport/control/types.h", "max_queued_bytes = 64u << 20;"),
         ("512 MiB", "transport/control/server.h", "max_queued_bytes_of_all = 512u << 20;")],
        "of all that is not read the peer goes that is owed most"),
    "what a host's link carries": (
        [("64 MiB", "transport/control/types.h", "max_queued_bytes = 64u << 20;"),
         ("512 MiB", "transport/control/relay.h", "max_queued_bytes_of_all = 512u << 20;")],
        "of all that a relay's processes do not read the one goes that is owed most"),
    "what jobs begin with": (
        [("4 GiB in all", "controller/gateway/tools.h", "all = 4ull << 30;"),
         ("half of that of a client", "controller/gateway/tools.h", "of_client = 2ull << 30;"),
         ("a quarter of a gateway's key", "controller/gateway/tools.h", "on_same_behalf = 1ull << 30;"),
         ("16 MiB of metadata", "models/image/limits.h", "kMaxBesidePixels = std::uint64_t{16} << 20;")],
        "what a job begins with is held against its request and a budget"),
    "jobs and results kept": (
        [("256 ended jobs", "controller/app/controller.cpp", "kKeptJobs = 256;"),
         ("4 GiB of results", "controller/jobs/job_table.h", "max_kept_bytes = 4ull << 30)")],
        "only so many ended jobs are remembered"),
    "users' actors": (
        [("4,096 living", "controller/user_actors/actor_table.h", "living = 4096;"),
         ("256 dead", "controller/user_actors/user_actors.h", "kept_dead = 256;"),
         ("names 256 bytes", "controller/user_actors/actor_table.h", "name_bytes = 256;"),
         ("64 MiB of an owner", "controller/user_actors/actor_table.h", "argument_bytes_of_one = 64u << 20;"),
         ("256 MiB in all", "controller/user_actors/actor_table.h", "argument_bytes = 256u << 20;"),
         ("16 KiB of what a constructor threw", "controller/user_actors/user_actors.cpp", "kLongestFailure = 16u << 10;")],
        "user actors: their number, names and constructors' arguments have bounds"),
    "calls that wait for a user's actor": (
        [("1 GiB of a caller", "actors/user/call_server.h", "waiting_bytes = 1ull << 30;"),
         ("4 GiB in all", "actors/user/call_server.h", "waiting_bytes_of_all = 4ull << 30;")],
        "calls that wait are bounded"),
    "watchers of a job or an actor": (
        [("one entry a peer", "controller/jobs/job_table.h", "std::set<std::uint64_t> watchers;")],
        "a client that goes is no watcher any more"),
    "latents, previews and documents": (
        [("8 of a kind, 1 GiB", "controller/gateway/introspection.cpp", "kKept = 8;"),
         ("1 GiB together", "controller/gateway/introspection.cpp", "kKeptBytes = 1u << 30;"),
         ("4 collections", "controller/gateway/introspection.cpp", "kMostAtOnce = 4;")],
        ""),
    "encoded prompts that an actor keeps": (
        [("64 MB", "controller/app/cluster.h", "prompt_cache_bytes = 64'000'000;"),
         ("four deployments", "controller/deployments/memory_room.h", "kMostResidents = 4;")],
        "a prompt cache keeps what was used last, within its bytes"),
    "what the recorder remembers": (
        [("64 jobs", "controller/recorder/recorder.h", "jobs = 64;"),
         ("8 attempts", "controller/recorder/recorder.h", "attempts = 8;"),
         ("100,000 tasks", "controller/recorder/recorder.h", "tasks = 100'000;"),
         ("200,000 notes", "controller/recorder/recorder.h", "all_notes = 200'000;"),
         ("2,000 events", "controller/recorder/recorder.h", "events = 2'000;")],
        "memory is bounded, and the newest stays"),
    "places of hosts that are gone": (
        [("64", "controller/supervision/hosts.cpp", "kKeptPlaces = 64;")],
        "of hosts that are gone for good the last places are kept, the others are used anew"),
    "failures, flight records": (
        [("10;", "controller/gateway/failure_log.h", "kKept = 10;"),
         ("16;", "controller/gateway/introspection.cpp", "kKeptRecords = 16;"),
         ("1,000", "controller/hosts/line_log.h", "most = 1000)")],
        ""),
    "logs on the disk": (
        [("64 MiB", "controller/hosts/process.h", "log_bytes = 64u << 20;"),
         ("256 users' actors", "controller/hosts/local_process_host.cpp", "kKeptUserLogs = 256;"),
         ("256 flight records", "controller/gateway/introspection.cpp", "kKeptFiles = 256;")],
        ""),
    "metrics": ([], ""),
    "blob": (
        [("256 KiB", "transport/control/blob_channel.h", "kBlobChunk = 256u << 10;"),
         ("8 outstanding", "transport/control/blob_channel.h", "credits = 8;")],
        "all fetches of a link together have its credits"),
    "prompt; all texts": (
        [("16 KiB", "transport/wire/request_limits.h", "kMaxPromptBytes = 16 << 10;"),
         ("256 KiB", "transport/wire/request_limits.h", "kMaxTextBytes = 256 << 10;"),
         ("4096", "transport/wire/request_limits.h", "kMaxPictures = 4096;")],
        "requests that do not fit are refused with the field"),
    "jobs waiting": (
        [("64;", "controller/app/cluster.h", "max_queued_jobs = 64;"),
         ("; 64", "controller/gateway/admission.cpp", "kMaxReadings = 64;")],
        "readings are bounded"),
    "key file": (
        [("4 KiB", "transport/control/keys.h", "kMaxKeyFile = 4096;"),
         ("1 MiB", "transport/control/keys.h", "kMaxAllowList = 1 << 20;")],
        ""),
    "tensor-plane hello": (
        [("255 bytes", "transport/tensor/rendezvous.h", "kMaxName = 255;")],
        "hellos that make no sense are refused with the reason"),
    "unproven and unclaimed": (
        [("64;", "transport/tensor/rendezvous.h", "kMaxGuests = 64;"),
         ("4096", "transport/tensor/rendezvous.cpp", "kMaxArrivals = 4096;")],
        "strangers who stay silent, also many of them, keep nobody out"),
    "shared-memory ring": ([("1 GiB", "transport/tensor/shm.cpp", "kMaxRing = 1u << 30;")], ""),
    "safetensors header": (
        [("100 MB", "models/spec/weight_index.cpp", "kMaxHeaderBytes = 100'000'000;"),
         ("65,536 tensors", "models/spec/weight_index.cpp", "kMaxTensors = 65'536;"),
         ("16 dimensions", "models/spec/weight_index.cpp", "kMaxDimensions = 16;")],
        "tensors and headers of a component are bounded"),
    "JSON config": (
        [("16 MiB", "models/spec/config.cpp", "kMaxConfigBytes = 16U << 20U;"),
         ("64 deep", "models/spec/json_text.cpp", "kMaxDepth = 64;"),
         ("a million values", "models/spec/json_text.h", "kMaxJsonValues = 1'000'000;")],
        "JSON that is damaged, doubled or too deep is refused"),
    "reading a model folder": (
        [("four folders at once", "controller/gateway/model_reader.cpp", "kReaders = 4;"),
         ("25 s", "controller/gateway/tools.h", "accept_within = std::chrono::seconds(25);")],
        "four folders are read at once, and no more"),
    "tokenizer files": (
        [("256 MiB", "models/text/piece_model.cpp", "kMaxModelBytes = 256U << 20U;"),
         ("256 MiB", "models/text/piece_model.cpp", "kMaxTokenizerBytes = 256U << 20U;"),
         ("64 MiB", "models/text/clip_tokenizer.cpp", "kMaxVocabularyBytes = 64U << 20U;"),
         ("4 million values", "models/text/special_tokens.h", "kMaxVocabularyValues = 4'000'000;"),
         ("512 bytes", "models/text/piece_model.cpp", "kMaxPieceBytes = 512;"),
         ("10,000 added tokens", "models/text/special_tokens.h", "kMaxAddedTokens = 10'000;")],
        "damaged tokenizer files are refused without a crash"),
    "embeddings": (
        [("64 files", "models/text/textual_inversion.h", "kMaxTextualInversions = 64;"),
         ("4 MiB", "models/text/textual_inversion.cpp", "kMostBytes = std::size_t{4} << 20;"),
         ("header of 1 MiB", "models/text/textual_inversion.cpp", "kMostHeader = std::uint64_t{1} << 20;"),
         ("256 bytes", "models/text/textual_inversion.cpp", "kMostTokenBytes = 256;")],
        "textual inversions that cannot be one of the model are refused with file and cause"),
    "initial picture": (
        [("2^26 pixels", "models/image/limits.h", "kMaxPicturePixels = std::uint64_t{1} << 26;"),
         ("64 scans", "models/image/load_picture.cpp", "kMostScans = 64;")],
        "a picture to start from is looked at before a job is made of it"),
    "text of a PNG, MP4 or WebM": (
        [("16 MiB", "models/image/png_text.h", "kMostTextBytes = std::size_t{16} << 20;")],
        "texts that are small as they lie in a file and large when inflated are bounded together"),
    "clips": (
        [("4,097 frames", "transport/wire/request_limits.h", "kMaxFrames = 4097;"),
         ("256 MiB", "models/image/frames.cpp", "kMostHeads = std::size_t{1} << 28;")],
        "an animation whose frames would take far more memory than its file is refused"),
    "a frame of MP4": (
        [("15 to", "models/image/mp4.cpp", "kShortestSide = 15;"),
         ("8,688 pixels", "models/image/mp4.cpp", "kLongestSide = 8688;"),
         ("36,864 blocks", "models/image/mp4.cpp", "kMostBlocks = 36864;")],
        "what no MP4 file can be made of is refused with the reason"),
    "clips as WebM": (
        [("two are encoded at a time", "web/clip_files.h", "threads = 2;"),
         ("of one key 8", "web/clip_files.h", "waiting_of_one = 8;"),
         ("16 files wait", "web/clip_files.h", "waiting = 16;"),
         ("256 MiB", "web/clip_files.h", "bytes = std::size_t{256} << 20;")],
        "what waits to be encoded is bounded, and what is kept in bytes"),
    "latents file": (
        [("1 GiB", "client/cli/latents_file.cpp", "kLargestFile = std::size_t{1} << 30;")],
        "bad latents are refused with the file and the reason"),
    "metrics request": (
        [("8 KiB", "controller/gateway/metrics_server.cpp", "kLongestHeader = 8192;"),
         ("5 s", "controller/gateway/metrics_server.cpp", "kPatience{5};"),
         ("16 at once", "controller/gateway/metrics_server.cpp", "kMostVisits = 16;")],
        "32 slow scrapes keep nobody out"),
}
