#pragma once
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "controller/journal/journal.h"

namespace troupe::journal {

/// Seconds that changes of a kind took, from `write` until they were kept.
struct Taken {
  std::uint64_t count = 0;
  double sum = 0;
  double worst = 0;
};

/// Writes changes to a store on a thread of its own, in order, so that a slow disk does not hold up
/// the controller. What cannot be written: an accepted job is given back at once with the cause.
/// The end of a job and that it is forgotten are tried again until they are kept; of an end it is
/// kept at once that it has come. An end that is too large is kept as a failure without its result.
/// The rest is not tried again: the next change of the same job says it all. Belongs to the thread
/// that runs `io`.
class Writer {
 public:
  /// `note` hears, on the loop, when something cannot be written, and when everything could be
  /// written for as long as `lasting`: on a full disk, where small changes find room between large
  /// ones, both are said once.
  Writer(boost::asio::io_context& io, std::unique_ptr<Store> store,
         std::function<void(const std::string&)> note,
         std::chrono::milliseconds lasting = std::chrono::seconds(5));
  /// Waits for a while until what is left is written; then closes the store.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// `done` may be null. It is called on the loop, never inside this call.
  void write(Change change, Journal::Done done);
  Taken taken(Change::Kind kind) const;
  /// Returns why the last change could not be written; empty while all is well.
  std::string trouble() const;

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::journal
