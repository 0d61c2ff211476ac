"""The limits of what comes from outside: one table, of which scripts/reference makes docs/reference/limits.md.

A line has what is limited, the limit in words, whose numbers are the code's, where the code has them, and the title of the
test that holds the code to them, or its beginning; "" where there is none yet. `{NAME:FORM}` in the words is the value that
the code gives NAME; `{A/B:share}` is the part that B is of A. Where a name is not the code's own, its place says which is.
"""
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Limit(NamedTuple):
    what: str
    says: str
    numbers: dict  # of a name: the file, or the file and the name there
    test: str = ""
    code: tuple = ()  # what words without a number stand for: a file, and what it says


LIMITS = [
    Limit("control message", "{kMaxPayload:bytes} of payload, one frame (ZeroMQ's own limit is set to it as well)",
          {"kMaxPayload": "transport/wire/envelope.h"},
          "a frame beyond the limit is cut off by ZeroMQ itself"),
    Limit("container in a message", "as many elements as fit into the bytes that remain; {kMaxDepth:n} deep",
          {"kMaxDepth": "transport/wire/archive.h"},
          "nesting is bounded"),
    Limit("connections that have said no hello, at all sockets of a process",
          "as many as the reserve of [descriptors](../security.md#descriptors), {kShareOfOne:share} of them from one address "
          "(over ipc: one process; IPv6: one /64); {kHelloWithin:ms}. Beyond that the oldest of the address that has most goes",
          {"kShareOfOne": "transport/control/accept_limiter.cpp", "kHelloWithin": "transport/control/accept_limiter.cpp"},
          "of too many pending connections of one address its oldest goes"),
    Limit("ZeroMQ's handshake, with keys or without", "{handshake_ivl:ms}",
          {"handshake_ivl": "transport/control/core.cpp"},
          "behind keys half a handshake has its time"),
    Limit("peers of a controller",
          "{max_peers:n}, and as many as leave the reserve of [descriptors](../security.md#descriptors)",
          {"max_peers": "transport/control/server.h"},
          "more peers than a server takes are refused"),
    Limit("requests of a peer that are not answered",
          "{most:n}, {most_bytes:bytes}; of all peers {all:n}, {all_bytes:bytes}",
          {"most": "transport/control/server.h", "most_bytes": "transport/control/server.h",
           "all": ("transport/control/server.h", ".most"), "all_bytes": ("transport/control/server.h", ".most_bytes")},
          "requests that are not answered are bounded in number"),
    Limit("unread messages in ZeroMQ, of a peer and for it", "{kUnread:n} each",
          {"kUnread": "controller/app/endpoints.cpp"},
          "a peer that does not read is given up"),
    Limit("queue to a peer that does not read",
          "{max_queued_messages:n} messages or {max_queued_bytes:bytes}, then it is lost; all queues together "
          "{max_queued_bytes_of_all:bytes}, then who is owed most is",
          {"max_queued_messages": "transport/control/types.h", "max_queued_bytes": "transport/control/types.h",
           "max_queued_bytes_of_all": "transport/control/server.h"},
          "of all that is not read the peer goes that is owed most"),
    Limit("what a host's link carries",
          "all links of a host together {max_queued_bytes:bytes}, or the host is lost; a host's own actors together "
          "{max_queued_bytes_of_all:bytes}, then who is owed most is",
          {"max_queued_bytes": "transport/control/types.h", "max_queued_bytes_of_all": "transport/control/relay.h"},
          "of all that a relay's processes do not read the one goes that is owed most"),
    Limit("what jobs begin with (latents, pictures, prompt embeds), on its way and of jobs that have not ended",
          "{all:bytes} in all and at most a quarter of the memory that was free when the controller started; "
          "{all/of_client:share} of that of a client, {all/on_same_behalf:share} of a gateway's key; latents and embeds must be "
          "as long as the request needs, a picture 16 bytes a pixel at most, and {kMaxBesidePixels:bytes} of metadata",
          {"all": "controller/service/tools.h", "of_client": "controller/service/tools.h",
           "on_same_behalf": "controller/service/tools.h", "kMaxBesidePixels": "models/image/limits.h"},
          "what a job begins with is held against its request and a budget"),
    Limit("jobs and results kept", "{kKeptJobs:n} ended jobs, {max_kept_bytes:bytes} of results",
          {"kKeptJobs": "controller/app/controller.cpp", "max_kept_bytes": "controller/jobs/job_table.h"},
          "only so many ended jobs are remembered"),
    Limit("users' actors",
          "{living:n} living; {kept_dead:n} dead remembered, without their arguments; names {name_bytes:bytes}; constructors' "
          "arguments {argument_bytes_of_one:bytes} of an owner, {argument_bytes:bytes} in all; {kLongestFailure:bytes} of what "
          "a constructor threw",
          {"living": "controller/user_actors/actor_table.h", "kept_dead": "controller/user_actors/user_actors.h",
           "name_bytes": "controller/user_actors/actor_table.h",
           "argument_bytes_of_one": "controller/user_actors/actor_table.h",
           "argument_bytes": "controller/user_actors/actor_table.h",
           "kLongestFailure": "controller/user_actors/user_actors.cpp"},
          "user actors: their number, names and constructors' arguments have bounds"),
    Limit("calls that wait for a user's actor, with their arguments",
          "{waiting_bytes:bytes} of a caller, {waiting_bytes_of_all:bytes} in all, one alone as much; more are failed",
          {"waiting_bytes": "actors/user/call_server.h", "waiting_bytes_of_all": "actors/user/call_server.h"},
          "calls that wait are bounded"),
    Limit("watchers of a job or an actor", "one entry a peer, gone with the peer", {},
          "a client that goes is no watcher any more",
          ("controller/jobs/job_table.h", "std::set<std::uint64_t> watchers;")),
    Limit("latents, previews and documents kept for who asked",
          "{kKept:n} of a kind, {kKeptBytes:bytes} together; {kMostAtOnce:n} collections at once",
          {"kKept": "controller/service/introspection.cpp", "kKeptBytes": "controller/service/introspection.cpp",
           "kMostAtOnce": "controller/service/introspection.cpp"}),
    Limit("encoded prompts that an actor keeps",
          "{prompt_cache_bytes:MB} of a deployment (`--prompt-cache`); an actor has {kMostResidents:word} deployments at most",
          {"prompt_cache_bytes": "controller/app/cluster.h", "kMostResidents": "controller/deployments/memory_room.h"},
          "a prompt cache keeps what was used last, within its bytes"),
    Limit("what the recorder remembers",
          "{jobs:n} jobs that have ended, {attempts:n} attempts of each, {tasks:n} tasks, {all_notes:n} notes, {events:n} events",
          dict.fromkeys(["jobs", "attempts", "tasks", "all_notes", "events"], "controller/recorder/recorder.h"),
          "memory is bounded, and the newest stays"),
    Limit("places of hosts that are gone", "{kKeptPlaces:n}",
          {"kKeptPlaces": "controller/supervision/hosts.cpp"},
          "of hosts that are gone for good the last places are kept, the others are used anew"),
    Limit("failures, flight records, lines of an actor's output, in memory", "{kKept:n}; {kKeptRecords:n}; {most:n}",
          {"kKept": "controller/service/tools.h", "kKeptRecords": "controller/service/introspection.cpp",
           "most": "controller/hosts/process_host.h"}),
    Limit("logs on the disk (`--keep-logs`)",
          "{log_bytes:bytes} of a process's, logs of {kKeptUserLogs:n} users' actors that have ended, {kKeptFiles:n} flight records",
          {"log_bytes": "controller/hosts/process.h", "kKeptUserLogs": "controller/hosts/local_process_host.cpp",
           "kKeptFiles": "controller/service/introspection.cpp"}),
    Limit("metrics", "one series for each actor and group: nothing that a client names", {}),
    Limit("blob",
          "{max_bytes:bytes}, in chunks of {kBlobChunk:bytes}, {credits:n} outstanding over a link; its checksum is verified",
          dict.fromkeys(["max_bytes", "kBlobChunk", "credits"], "transport/control/blob_channel.h"),
          "all fetches of a link together have its credits"),
    Limit("prompt; all texts of a request; pictures", "{kMaxPromptBytes:bytes}; {kMaxTextBytes:bytes}; {kMaxPictures:n}",
          dict.fromkeys(["kMaxPromptBytes", "kMaxTextBytes", "kMaxPictures"], "transport/wire/request_limits.h"),
          "requests that do not fit are refused with the field"),
    Limit("the HTTP gateway",
          "{most_connections:n} connections: where they are short, the key (or address without a key) that has most of them "
          "gives way; {most_body_bytes:bytes} of memory for bodies, of which a byte counts {memory_per_body_byte:n}, "
          "{most_body_bytes_of_one:bytes} of a key or address; {most_unread_bytes:bytes} of answers that are under way; "
          "{kMost:n} links; the rest: [http](../http.md#who-may-ask)",
          {**dict.fromkeys(["most_connections", "most_body_bytes", "memory_per_body_byte", "most_body_bytes_of_one",
                            "most_unread_bytes"], "web/http_server.h"), "kMost": "web/api.h"},
          "whole answers that are not read have a limit, and the largest goes"),
    Limit("jobs waiting; models being read; jobs being planned", "{max_queued_jobs:n}; {kMaxReadings:n}; {kMaxPlans:n}",
          {"max_queued_jobs": "controller/app/cluster.h", "kMaxReadings": "controller/service/admission.cpp",
           "kMaxPlans": "controller/service/admission.cpp"},
          "readings are bounded"),
    Limit("key file; list of clients", "{kMaxKeyFile:bytes}; {kMaxAllowList:bytes}",
          {"kMaxKeyFile": "transport/control/keys.h", "kMaxAllowList": "transport/control/keys.h"}),
    Limit("tensor-plane hello, challenge, proof", "fixed sizes; group names {kMaxName:n} bytes",
          {"kMaxName": "transport/tensor/rendezvous.h"},
          "hellos that make no sense are refused with the reason"),
    Limit("unproven and unclaimed tensor-plane connections", "{kMaxGuests:n}; {kMaxArrivals:n}",
          {"kMaxGuests": "transport/tensor/rendezvous.h", "kMaxArrivals": "transport/tensor/rendezvous.cpp"},
          "strangers who stay silent, also many of them, keep nobody out"),
    Limit("shared-memory ring", "{kMaxRing:bytes}, and of exactly the size that was announced, sealed against shrinking",
          {"kMaxRing": "transport/tensor/shm.cpp"}),
    Limit("safetensors header, shard index",
          "{kMaxHeaderBytes:MB}, of all shards of a component together; {kMaxTensors:n} tensors; {kMaxDimensions:n} dimensions; "
          "every byte range checked against the file",
          dict.fromkeys(["kMaxHeaderBytes", "kMaxTensors", "kMaxDimensions"], "models/spec/weight_index.cpp"),
          "tensors and headers of a component are bounded"),
    Limit("JSON config",
          "{kMaxConfigBytes:bytes}, {kMaxDepth:n} deep, {kMaxJsonValues:millions} values, no key twice; widths, levels and "
          "blocks bounded by each reader",
          {"kMaxConfigBytes": "models/spec/config.cpp", "kMaxDepth": "models/spec/json_text.cpp",
           "kMaxJsonValues": "models/spec/json_text.h"},
          "JSON that is damaged, doubled or too deep is refused"),
    Limit("reading a model folder",
          "time that grows with its files' length; {kReaders:word} folders at once, {accept_within:s} until a client is answered",
          {"kReaders": "controller/service/model_reader.cpp", "accept_within": "controller/service/tools.h"},
          "four folders are read at once, and no more"),
    Limit("tokenizer files",
          "{kMaxModelBytes:bytes} (`spiece.model`), {kMaxTokenizerBytes:bytes} (`tokenizer.json`), {kMaxVocabularyBytes:bytes} "
          "(`vocab.json`, `merges.txt`); {kMaxVocabularyValues:millions} values, pieces of {kMaxPieceBytes:bytes}, "
          "{kMaxAddedTokens:n} added tokens",
          {"kMaxModelBytes": "models/text/piece_model.cpp", "kMaxTokenizerBytes": "models/text/piece_model.cpp",
           "kMaxVocabularyBytes": "models/text/byte_bpe.cpp", "kMaxVocabularyValues": "models/text/special_tokens.h",
           "kMaxPieceBytes": "models/text/piece_model.cpp", "kMaxAddedTokens": "models/text/special_tokens.h"},
          "damaged tokenizer files are refused without a crash"),
    Limit("embeddings",
          "{kMaxTextualInversions:n} files of {kMostBytes:bytes}, a header of {kMostHeader:bytes}; as many vectors as a prompt "
          "has room for; words of {kMostTokenBytes:bytes}",
          {"kMaxTextualInversions": "models/text/textual_inversion.h",
           **dict.fromkeys(["kMostBytes", "kMostHeader", "kMostTokenBytes"], "models/text/textual_inversion.cpp")},
          "textual inversions that cannot be one of the model are refused with file and cause"),
    Limit("initial picture",
          "{kMaxPictureBytes:bytes}, {kMaxPicturePixels:power} pixels, {kMaxBesidePixels:bytes} and 16 bytes a pixel; {kMostScans:n} scans of a "
          "JPEG; what is beside a PNG's pixels is not unpacked; decoding, resizing and encoding it is in the plan's memory by "
          "the size in its header, and refused with the numbers where it does not fit",
          {**dict.fromkeys(["kMaxPictureBytes", "kMaxPicturePixels", "kMaxBesidePixels"], "models/image/limits.h"),
           "kMostScans": "models/image/load_picture.cpp"},
          "a picture to start from is looked at before a job is made of it"),
    Limit("text of a PNG, MP4 or WebM",
          "{kMostTextBytes:bytes} of a file, inflated; `troupe inspect` and `submit --from` read files up to {kMaxPictureBytes:bytes}",
          {"kMostTextBytes": "models/image/png_text.h", "kMaxPictureBytes": "models/image/limits.h"},
          "texts that are small as they lie in a file and large when inflated are bounded together"),
    Limit("clips",
          "{kMaxFrames:n} frames; of an animated PNG that is taken apart (frames as files, WebM, MP4) {kMostHeads:bytes} of what "
          "every frame repeats",
          {"kMaxFrames": "transport/wire/request_limits.h", "kMostHeads": "models/image/frames.cpp"},
          "an animation whose frames would take far more memory than its file is refused"),
    Limit("clips as WebM or MP4",
          "{threads:word} are encoded at a time, of one key one; {waiting:n} files wait, of one key {waiting_of_one:n}; "
          "{bytes:bytes} of files are kept, those that were asked for last",
          dict.fromkeys(["threads", "waiting", "waiting_of_one", "bytes"], "web/clip_files.h"),
          "what waits to be encoded is bounded, and what is kept in bytes"),
    Limit("a frame of MP4",
          "{kShortestSide:n} to {kLongestSide:n} pixels a side, {kMostBlocks:n} blocks of 16 × 16",
          dict.fromkeys(["kShortestSide", "kLongestSide", "kMostBlocks"], "models/image/mp4.cpp"),
          "what no MP4 file can be made of is refused with the reason"),
    Limit("latents file; file of prompt embeds", "{kLargestFile:bytes}, every value finite; {kLargestEmbeds:bytes}",
          {"kLargestFile": "client/cli/files.cpp", "kLargestEmbeds": "client/cli/submission.cpp"},
          "bad latents are refused with the file and the reason"),
    Limit("metrics request",
          "{kLongestHeader:bytes} of header, {kPatience:s}, {kMostVisits:n} at once: then the one that has taken longest goes",
          dict.fromkeys(["kLongestHeader", "kPatience", "kMostVisits"], "controller/service/metrics_server.cpp"),
          "32 slow scrapes keep nobody out"),
]

WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight"]
SHARES = {2: "half", 4: "a quarter", 8: "an eighth"}


def in_bytes(value):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value % unit == 0 and value >= unit:
            return f"{value // unit:,} {name}"
    return f"{value:,} bytes"


FORMS = {
    "n": "{:,}".format,
    "bytes": in_bytes,
    "MB": lambda value: f"{value // 10**6} MB",
    "s": "{} s".format,
    "ms": lambda value: f"{value // 1000} s",
    "word": WORDS.__getitem__,
    "share": SHARES.__getitem__,
    "power": lambda value: f"2^{value.bit_length() - 1}",
    "millions": lambda value: "a million" if value == 10**6 else f"{value // 10**6} million",
}


def spaces_as_one(text):
    return re.sub(r"\s+", " ", text)


def value_of(file, name):
    """The number, not 0, that FILE gives NAME where it declares or sets it."""
    text = spaces_as_one(re.sub(r"//.*", "", (ROOT / file).read_text()))
    number = r"[\w:]*\s*[({]?\s*[1-9][\w' <]*[)}]?(?:\s*<<\s*\w+)?"
    found = set(re.findall(rf"(?<![\w.]){re.escape(name)}(?: = |, )?({number})(?=[;,)}}])", text))
    if len(found) != 1:
        raise ValueError(f"{file}: {name} is given {len(found)} numbers")
    plain = re.sub(r"std::[\w:]+", "", found.pop()).replace("'", "")
    plain = re.sub(r"(\d)[uUlL]+", r"\1", re.sub(r"[(){}]", "", plain)).strip()
    first, _, shift = plain.partition("<<")
    return int(first) << int(shift or 0)


def words_of(limit):
    """The limit in words, with the code's numbers."""
    def number(name):
        place = limit.numbers[name]
        return value_of(place, name) if isinstance(place, str) else value_of(*place)

    def written(match):
        name, form = match[1], match[2]
        whole, _, part = name.partition("/")
        return FORMS[form](number(whole) // number(part) if part else number(whole))
    used = {name for names in re.findall(r"\{([\w/]+):\w+\}", limit.says) for name in names.split("/")}
    if used != set(limit.numbers):
        raise ValueError(f'"{limit.what}": its words have the names {sorted(used)}, its places {sorted(limit.numbers)}')
    return re.sub(r"\{([\w/]+):(\w+)\}", written, limit.says)
