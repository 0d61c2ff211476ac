#pragma once
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "controller/gateway/allowed_folders.h"
#include "controller/gateway/side_thread.h"
#include "models/spec/model_spec.h"
#include "transport/wire/job.h"

namespace troupe::gateway {

/// What a folder holds, and its fingerprint (models/spec/fingerprint.h) at that time; or why it
/// cannot be read.
struct ModelReading {
  std::shared_ptr<const spec::ModelSpec> model;  // null on failure
  std::uint64_t fingerprint = 0;
  std::string folder;             // the one that was read: where links and ".." of its name led
  std::vector<wire::Lora> loras;  // likewise; their layers are in the model, their values unseen
  std::vector<std::uint64_t> lora_fingerprints;
  std::string error;  // one line
};

/// Reads model folders on a thread of its own: headers of many shards on a slow disk must not keep
/// the controller's loop from its heartbeats. A folder that was read before and has not changed
/// since is known by its fingerprint. Belongs to the thread that runs `io`.
class ModelReader {
 public:
  using Handler = std::function<void(const ModelReading&)>;
  using Read = std::function<spec::ModelSpec(const std::string& folder)>;

  explicit ModelReader(boost::asio::io_context& io, Read read = {}, AllowedFolders allowed = {});
  /// Handlers that have not been called are dropped. Waits a moment for a reading in hand; one that
  /// hangs in the file system is left to itself.
  ~ModelReader();
  ModelReader(const ModelReader&) = delete;
  ModelReader& operator=(const ModelReader&) = delete;

  /// The handler is called on the loop, in the order of these calls, never inside one. LoRAs are
  /// read after the folder and held against its layers; they, too, must lie in allowed folders.
  void read(std::string folder, Handler handler) {
    read(std::move(folder), {}, std::move(handler));
  }
  void read(std::string folder, std::vector<wire::Lora> loras, Handler handler);
  /// Readings asked for and not yet handed over.
  std::size_t waiting() const { return handlers_.size(); }

 private:
  class Memory;

  std::shared_ptr<Memory> memory_;
  std::map<std::uint64_t, Handler> handlers_;  // by the number of their call
  std::uint64_t last_ = 0;
  SideThread thread_;
};

}  // namespace troupe::gateway
