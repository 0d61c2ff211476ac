#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "controller/app/messages.h"
#include "controller/app/startup.h"
#include "controller/supervision/host_figures.h"
#include "controller/supervision/supervisor.h"
#include "transport/control/blob_channel.h"
#include "transport/control/zap.h"

namespace troupe::cluster {

/// Decides who may connect. Messages go by the table in messages.cpp.
class PeerRouter {
 public:
  struct Tools {
    Rooms rooms;
    control::BlobServer& blob_server;
    control::Refusals& refusals;
    Supervisor& supervisor;
    Startup& startup;
    HostFigures& figures;
    std::function<void()> on_host_lost;
  };

  /// Listens to both servers from now on.
  explicit PeerRouter(Tools tools);
  /// Lets nobody in any more, for this reason.
  void close(std::string why) { closed_ = std::move(why); }

 private:
  std::optional<std::string> on_connect(const control::PeerInfo& peer);
  /// Lets a peer into the blob channel that shows the secret of its control link.
  control::BlobPass on_blob_connect(const control::PeerInfo& peer);
  void on_ready(control::PeerId peer);
  void on_message(control::PeerId peer, const wire::Header& header,
                  std::span<const std::byte> payload);
  void on_lost(control::PeerId peer, const control::Loss& loss);
  /// Returns why a peer is not let in; nothing where it may come in.
  std::optional<std::string> stranger(const control::PeerInfo& peer);
  /// Returns `why`, and adds it to the refusals if it is a reason.
  std::optional<std::string> turned_away(const control::PeerInfo& peer,
                                         std::optional<std::string> why);
  /// Tells the holder of a link, and the log, that another peer claims to be the holder's process.
  void tell_of_rival(control::PeerId holder, const control::PeerInfo& rival,
                     const std::string& what);
  std::string name_of(control::PeerId peer) const;

  Tools tools_;
  std::map<control::PeerId, control::Clock::time_point> told_of_rivals_;
  std::optional<std::string> closed_;  // why nobody is let in
};

}  // namespace troupe::cluster
