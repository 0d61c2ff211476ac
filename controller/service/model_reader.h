#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/allowed_folders.h"
#include "controller/service/side_thread.h"
#include "models/spec/model_spec.h"
#include "transport/wire/job.h"
#include "transport/wire/job_field.h"

namespace troupe::service {

/// Model of a folder, and the folder's fingerprint (models/spec/fingerprint.h) at that time; or why
/// the folder cannot be read.
struct ModelReading {
  std::shared_ptr<const spec::ModelSpec> model;  // null on failure
  std::uint64_t fingerprint = 0;
  std::string folder;             // the one that was read: where links and ".." of its name led
  std::vector<wire::Lora> loras;  // likewise; their layers are in the model, their values unseen
  std::vector<std::uint64_t> lora_fingerprints;
  std::vector<std::string> lora_warnings;  // on tensors of theirs that are not used
  std::vector<std::string> controlnets;    // their folders, likewise; they are in the model
  std::vector<std::uint64_t> controlnet_fingerprints;
  std::vector<wire::Embedding> embeddings;       // likewise, with their words and fingerprints
  std::string error;                             // one line
  wire::JobField field = wire::JobField::model;  // that names what cannot be read
  bool late = false;                             // nobody knows yet: it was not read in time
};

/// Reads model folders on a few threads of its own: headers of many shards on a slow disk must not
/// keep the controller's loop from its heartbeats, nor those who ask for other folders. A folder
/// that was read before and has not changed since is known by its fingerprint. Belongs to the
/// thread that runs `io`.
class ModelReader {
 public:
  using Handler = std::function<void(const ModelReading&)>;
  using Read = std::function<spec::ModelSpec(const std::string& folder)>;

  explicit ModelReader(boost::asio::io_context& io, Read read = {}, AllowedFolders allowed = {});
  /// Drops handlers that have not been called. Waits a moment for readings in hand; one that hangs
  /// in the file system is left to itself.
  ~ModelReader();
  ModelReader(const ModelReader&) = delete;
  ModelReader& operator=(const ModelReader&) = delete;

  /// Calls the handler once, on the loop, never inside this call: with what was read, or after
  /// `within` with a reading that is late (where it was begun it goes on, and keeps its thread). In
  /// the order of these calls for the same folder and files, which are read one at a time. The
  /// ControlNets, LoRAs and embeddings of the request are read after the folder and held against
  /// it, and its texts against their words; they, too, must lie in allowed folders.
  void read(std::string folder, const wire::ImageRequest& request, std::chrono::milliseconds within,
            Handler handler);
  /// Returns the number of readings asked for and not yet handed over.
  std::size_t waiting() const { return asked_.size(); }

 private:
  class Memory;
  struct Files {
    std::string folder;
    std::vector<std::string> others;
    auto operator<=>(const Files&) const = default;
  };
  struct Added {
    std::vector<wire::Lora> loras;
    std::vector<wire::Embedding> embeddings;
    std::vector<std::string> texts;
    std::vector<std::string> controlnets;
  };
  struct Asked {
    Files files;
    Added added;
    Handler handler;
    boost::asio::steady_timer deadline;
  };

  void expire(std::uint64_t number);
  void begin_next();
  void begin(std::uint64_t number, const Asked& asked);

  boost::asio::io_context& io_;
  std::shared_ptr<Memory> memory_;
  std::map<std::uint64_t, Asked> asked_;  // by the number of their call
  std::set<std::uint64_t> waiting_;       // numbers of readings that have not been begun
  std::set<Files> in_hand_;               // also of readings that came too late
  std::uint64_t last_ = 0;
  SideThread threads_;
};

}  // namespace troupe::service
