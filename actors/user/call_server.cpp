#include "actors/user/call_server.h"

#include <boost/asio/post.hpp>
#include <map>

namespace troupe::runtime {
namespace {

constexpr std::size_t kInlineResult = 16u << 10;  // bytes; more is held as a blob
constexpr std::size_t kBatchBytes = 256u << 10;
constexpr std::size_t kQueuedBytes = 256u << 20;
constexpr std::size_t kCallBytes = 256;  // what a call takes beside its arguments
/// A caller's parts may be as large as a blob; a second must do for the smallest link's megabyte.
constexpr control::Milliseconds kSilence{15'000};

std::string assemble(const wire::ActorCall& call, const std::vector<control::BlobBytes>& parts) {
  std::string whole;
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    whole.append(call.arguments, at, call.parts[i].at - at);
    at = call.parts[i].at;
    whole += *parts[i];
  }
  return whole.append(call.arguments, at);
}

void check_parts(const wire::ActorCall& call) {
  std::uint32_t last = 0;
  for (const auto& part : call.parts) {
    if (part.at < last || part.at > call.arguments.size())
      throw wire::WireError(wire::WireErrc::bad_value, "[call] parts of arguments out of order");
    last = part.at;
  }
}

}  // namespace

CallServer::CallServer(boost::asio::io_context& io, CallServerOptions options,
                       control::BlobStore& blobs, std::shared_ptr<calls::Exchange> exchange,
                       Deliver deliver)
    : io_(io),
      blobs_(blobs),
      exchange_(std::move(exchange)),
      deliver_(std::move(deliver)),
      waiting_bytes_(options.waiting_bytes),
      waiting_bytes_of_all_(options.waiting_bytes_of_all) {
  control::ServerOptions server;
  server.endpoint = options.endpoint;
  server.insecure = options.insecure;
  server.software = "troupe actor";
  server.heartbeat_timeout = kSilence;
  server.socket.context = options.context;
  server.guard = options.guard;
  server.socket.max_queued_bytes = kQueuedBytes;
  server_ = std::make_unique<control::Server>(io, server);
  server.endpoint = options.blob_endpoint;
  blob_server_ = std::make_unique<control::BlobServer>(io, server, blobs_);
  const auto refusal_of =
      [ticket = options.ticket](const control::PeerInfo& peer) -> std::optional<std::string> {
    const auto shown = peer.hello.attributes.find("ticket");
    if (peer.hello.role != PeerRole::caller || shown == peer.hello.attributes.end() ||
        !control::same_secret(shown->second, ticket))
      return "without the ticket that the controller gives out for this actor";
    return std::nullopt;
  };
  server_->on_connect(refusal_of);
  // Callers may be fetched from; all who have the ticket may fetch.
  blob_server_->admit([this, refusal_of](const control::PeerInfo& peer) -> control::BlobPass {
    if (auto why = refusal_of(peer)) return {.refusal = std::move(*why)};
    const auto& secret = peer.hello.secret;
    if (secret.empty()) return {.fetches_only = true};
    if (server_->holder_of(peer.incarnation, secret)) return {};
    return {.refusal = "without the secret of a caller's link"};
  });
  server_->on_ready([this](control::PeerId peer) {
    callers_[peer].incarnation = server_->info(peer)->incarnation;
  });
  server_->on_message(
      [this](control::PeerId peer, const wire::Header& header, std::span<const std::byte> payload) {
        on_message(peer, header, payload);
      });
  server_->on_lost([this](control::PeerId peer, const control::Loss&) { forget(peer); });
  // A missing message may be a call: its caller has to hear that, and does by losing the link.
  server_->on_gap([this](control::PeerId peer, std::uint64_t missing) {
    server_->drop(peer, std::to_string(missing) + " of its messages never arrived");
    forget(peer);
  });
}

CallServer::~CallServer() = default;

void CallServer::on_message(control::PeerId peer, const wire::Header& header,
                            std::span<const std::byte> payload) {
  auto& caller = callers_[peer];
  if (header.kind == wire::Kind::release_values) {
    for (const auto blob : wire::decode<wire::ReleaseValues>(payload).blobs) {
      if (caller.held.erase(blob) > 0) blobs_.remove(blob);
    }
    return;
  }
  if (header.kind != wire::Kind::actor_calls) {
    throw wire::WireError(wire::WireErrc::wrong_kind,
                          "[call] " + wire::to_string(header.kind) + " is not for an actor");
  }
  auto message = wire::decode<wire::ActorCalls>(payload);
  const auto now = control::Clock::now();
  std::vector<ReadyCall> ready;
  std::vector<std::pair<control::PeerId, wire::CallResult>> refused;
  ready.reserve(message.calls.size());
  for (auto& call : message.calls) {
    if (call.id <= caller.newest) continue;
    caller.newest = call.id;
    if (!has_room(caller, call)) {
      refused.emplace_back(peer, wire::CallResult{call.id, wire::CallEnd::failed,
                                                  "too much waits for the actor already: " +
                                                      std::to_string(caller.waiting.own().bytes) +
                                                      " bytes of this caller's calls, " +
                                                      std::to_string(waiting_.bytes) + " in all",
                                                  0, 0});
      continue;
    }
    const auto until = now + control::Milliseconds(call.deadline_ms);
    if (call.parts.empty() && caller.arriving.empty()) {
      ready.push_back({peer, call.id, std::move(call.method), call.types, call.text,
                       std::move(call.arguments), until});
      continue;
    }
    check_parts(call);
    auto arriving = std::make_shared<Arriving>();
    arriving->call = std::move(call);
    arriving->until = until;
    caller.arriving.push_back(arriving);
    fetch_parts(peer, arriving);
  }
  if (!ready.empty()) deliver_(std::move(ready));
  if (!refused.empty()) answer(std::move(refused));
}

bool CallServer::has_room(KnownCaller& caller, const wire::ActorCall& call) {
  std::uint64_t bytes = kCallBytes + call.method.size() + call.arguments.size();
  for (const auto& part : call.parts)
    bytes += std::min(part.bytes, waiting_bytes_of_all_);
  const auto fits = [bytes](std::uint64_t waits, std::uint64_t most) {
    return waits == 0 || waits + bytes <= most;
  };
  if (!fits(caller.waiting.own().bytes, waiting_bytes_) ||
      !fits(waiting_.bytes, waiting_bytes_of_all_))
    return false;
  caller.waiting.take(call.id, bytes, waiting_);
  return true;
}

void CallServer::fetch_parts(control::PeerId peer, const std::shared_ptr<Arriving>& arriving) {
  const auto& parts = arriving->call.parts;
  arriving->parts.resize(parts.size());
  arriving->missing = parts.size();
  const auto deadline =
      std::chrono::duration_cast<control::Milliseconds>(arriving->until - control::Clock::now());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& part = parts[i];
    const auto arrived = [this, alive = std::weak_ptr(alive_), peer, arriving,
                          i](control::BlobResult blob) {
      if (!alive.lock()) return;
      if (!blob) arriving->failure = blob.failure.what;
      arriving->parts[i] = std::move(blob.bytes);
      if (--arriving->missing > 0) return;
      std::vector<ReadyCall> ready;
      deliver_arrived(peer, ready);
      if (!ready.empty()) deliver_(std::move(ready));
    };
    if (part.endpoint.empty()) {
      blob_server_->fetch(callers_[peer].incarnation, part.blob, part.bytes,
                          std::max(deadline, control::Milliseconds(1)), arrived);
    } else if (part.endpoint == blob_endpoint()) {
      // This process holds the blob itself.
      control::BlobResult own{blobs_.bytes(part.blob),
                              {wire::FailureCode::not_found, "it was released already"}};
      boost::asio::post(io_, [arrived, own = std::move(own)] { arrived(own); });
    } else {
      exchange_->fetch_blob({part.endpoint, part.ticket, part.keys}, part.blob, part.bytes,
                            std::max(deadline, control::Milliseconds(1)), arrived);
    }
  }
}

void CallServer::deliver_arrived(control::PeerId peer, std::vector<ReadyCall>& ready) {
  const auto found = callers_.find(peer);
  if (found == callers_.end()) return;
  auto& queue = found->second.arriving;
  std::vector<std::pair<control::PeerId, wire::CallResult>> failed;
  while (!queue.empty() && queue.front()->missing == 0) {
    const auto arriving = std::move(queue.front());
    queue.pop_front();
    auto& call = arriving->call;
    if (!arriving->failure.empty()) {
      wire::CallResult result{call.id, wire::CallEnd::failed,
                              "an argument did not arrive: " + arriving->failure, 0, 0};
      failed.emplace_back(peer, std::move(result));
      continue;
    }
    std::string arguments = assemble(call, arriving->parts);
    ready.push_back({peer, call.id, std::move(call.method), call.types, call.text,
                     std::move(arguments), arriving->until});
  }
  if (!failed.empty()) answer(std::move(failed));
}

void CallServer::answer(std::vector<std::pair<control::PeerId, wire::CallResult>> results) {
  std::map<control::PeerId, std::pair<wire::CallResults, std::size_t>> batches;
  for (auto& [peer, result] : results) {
    const auto caller = callers_.find(peer);
    if (caller == callers_.end()) continue;
    caller->second.waiting.answered(result.id, waiting_);
    if (result.bytes.size() > kInlineResult) {
      if (result.end == wire::CallEnd::value) {
        result.blob_bytes = result.bytes.size();
        result.blob = blobs_.add(std::make_shared<const std::string>(std::move(result.bytes)));
        result.bytes.clear();
        result.end = wire::CallEnd::held;
        caller->second.held.insert(result.blob);
      } else {
        result.bytes.resize(kInlineResult);
      }
    }
    auto& [batch, bytes] = batches[peer];
    const auto size = result.bytes.size() + 64;
    if (bytes + size > kBatchBytes) {
      server_->send(peer, batch);
      batch.results.clear();
      bytes = 0;
    }
    bytes += size;
    batch.results.push_back(std::move(result));
  }
  for (auto& [peer, batch] : batches)
    server_->send(peer, batch.first);
}

void CallServer::forget(control::PeerId peer) {
  const auto found = callers_.find(peer);
  if (found == callers_.end()) return;
  for (const auto blob : found->second.held)
    blobs_.remove(blob);
  found->second.waiting.forget(waiting_);
  callers_.erase(found);
}

void CallServer::close() {
  server_->close();
  blob_server_->close();
}

}  // namespace troupe::runtime
