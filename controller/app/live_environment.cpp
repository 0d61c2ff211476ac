#include "controller/app/live_environment.h"

#include <boost/asio/post.hpp>

#include "transport/control/after.h"

namespace troupe::cluster {
namespace {

double seconds_of(control::Clock::time_point when) {
  return std::chrono::duration<double>(when.time_since_epoch()).count();
}

}  // namespace

LiveEnvironment::LiveEnvironment(boost::asio::io_context& io, control::Server& server,
                                 control::BlobServer& blob_server, control::BlobStore& blobs,
                                 Access access)
    : io_(io),
      server_(server),
      blob_server_(blob_server),
      blobs_(blobs),
      access_(std::move(access)) {}

double LiveEnvironment::now() const {
  return seconds_of(control::Clock::now());
}

void LiveEnvironment::after(double seconds, std::function<void()> action) {
  if (seconds <= 0) {
    boost::asio::post(io_, std::move(action));
    return;
  }
  control::after(io_, std::chrono::duration<double>(seconds), std::move(action));
}

bool LiveEnvironment::send_frame(control::PeerId peer, std::string frame) {
  return server_.send_frame(peer, std::move(frame));
}

void LiveEnvironment::request_frame(control::PeerId peer, std::string frame,
                                    control::Milliseconds deadline, control::ReplyHandler handler) {
  server_.request_frame(peer, std::move(frame), deadline, std::move(handler));
}

void LiveEnvironment::drop(control::PeerId peer, const std::string& why) {
  server_.drop(peer, why);
}

std::optional<double> LiveEnvironment::last_progress(control::PeerId peer) const {
  const auto vitals = server_.vitals(peer);
  if (!vitals) return std::nullopt;
  return seconds_of(vitals->progress_changed);
}

std::optional<cluster::Environment::Pace> LiveEnvironment::pace(control::PeerId peer) const {
  const auto vitals = server_.vitals(peer);
  if (!vitals) return std::nullopt;
  return Pace{vitals->progress, seconds_of(vitals->progress_changed), seconds_of(vitals->heard)};
}

void LiveEnvironment::fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                                 control::Milliseconds deadline, control::BlobHandler handler) {
  blob_server_.fetch(incarnation, blob.id, blob.bytes, deadline, std::move(handler));
}

control::BlobId LiveEnvironment::keep_blob(control::BlobBytes bytes) {
  return blobs_.add(std::move(bytes));
}

void LiveEnvironment::drop_blob(control::BlobId id) {
  blobs_.remove(id);
}

std::uint32_t LiveEnvironment::spawn(const Actor& place, std::uint64_t incarnation) {
  if (place.closed)
    throw std::runtime_error("[cluster] host " + place.host + " is not there any more");
  return host_of_(place.id).start({.owner = {PeerRole::actor, place.id},
                                   .incarnation = incarnation,
                                   .token = access_.token,
                                   .keys = access_.keys,
                                   .device = place.device});
}

void LiveEnvironment::kill(ActorId id, const std::string& why) {
  host_of_(id).end({PeerRole::actor, id}, why);
}

}  // namespace troupe::cluster
