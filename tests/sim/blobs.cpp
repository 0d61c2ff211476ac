#include "tests/sim/world.h"

// Blobs come on a link of their own: in no order with messages, late, or not within the deadline.
namespace troupe::sim {

void World::fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                       control::Milliseconds deadline, control::BlobHandler handler) {
  struct Fetch {
    control::BlobHandler handler;
    void end(control::BlobResult result) {
      if (const auto told = std::exchange(handler, nullptr)) told(std::move(result));
    }
  };
  const auto fetch = std::make_shared<Fetch>(Fetch{std::move(handler)});
  const bool late = chance(faults_.late_blobs);
  const double seconds = !late ? some(0.003) : some(rng_() % 64 == 0 ? 150 : 4);
  const double allowed = static_cast<double>(deadline.count()) * 1e-3;
  if (seconds > allowed) {
    after(allowed, [fetch] {
      fetch->end({nullptr, {wire::FailureCode::timeout, "not here in time"}});
    });
  }
  const auto look = [this, incarnation, id = blob.id, fetch](const auto& again) -> void {
    const auto process = processes_.find(incarnation);
    if (process == processes_.end() || process->second->hangs)
      return fetch->end({nullptr, {wire::FailureCode::lost, "its holder is gone"}});
    if (process->second->stopped_until > now_)
      return at(process->second->stopped_until, [again] { again(again); });
    const std::string* bytes = process->second->blob(id);
    if (!bytes) return fetch->end({nullptr, {wire::FailureCode::not_found, "it was released"}});
    fetch->end({std::make_shared<const std::string>(*bytes), {}});
  };
  after(seconds, [look] { look(look); });
}

control::BlobId World::keep_blob(control::BlobBytes bytes) {
  const auto id = random();
  blobs_[id] = *bytes;
  return id;
}

void World::drop_blob(control::BlobId id) {
  if (blobs_.erase(id) == 0) throw Violation("a blob was dropped twice");
}

std::optional<std::string> World::held_blob(control::BlobId id) const {
  const auto found = blobs_.find(id);
  if (found == blobs_.end()) return std::nullopt;
  return found->second;
}

}  // namespace troupe::sim
