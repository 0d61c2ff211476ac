#include "tests/process/support/same_picture.h"

#include <chrono>
#include <sstream>
#include <utility>

#include "tests/process/support/pictures.h"
#include "tests/support/doctest.h"
#include "tests/support/patience.h"

namespace troupe::testing {

std::string Seen::text() const {
  std::ostringstream text;
  text << latents.seen << " runs, latents within " << latents.value << " of range ("
       << latents.where << "), " << levels.seen << " pictures within " << levels.value
       << " levels; " << total << " s, at most " << seconds.value << " s (" << seconds.where << ")";
  return text.str();
}

SamePicture::SamePicture(SharedCluster& cluster, Submission submission, Seen& seen)
    : cluster_(cluster), submission_(std::move(submission)), seen_(seen) {
  submission_.request.want_latents = true;
  submission_.parallelism = {};
  const auto result = cluster_.run(submission_);
  latents_ = result.latents.value();
  for (const auto& picture : result.pictures)
    pictures_.push_back(decode_png(picture.png));
}

JobResult SamePicture::check_at(const Parallelism& degrees) {
  const auto& request = submission_.request;
  const bool exact = request.method == "exact";
  const auto where =
      request.method + " " + (exact ? "" : request.kv + " ") + "at " + name_of(degrees);
  CAPTURE(where);
  submission_.parallelism = degrees;
  const auto begin = std::chrono::steady_clock::now();
  auto result = cluster_.run(submission_);
  const double took = seconds_since(begin);
  seen_.seconds.see(took, where);
  seen_.total += took;
  const double error = range_error(result.latents.value(), latents_);
  CHECK(error <= kSameBound);
  seen_.latents.see(error, where);
  REQUIRE(result.pictures.size() == pictures_.size());
  for (std::size_t i = 0; i < pictures_.size(); ++i) {
    const int level = level_error(decode_png(result.pictures[i].png), pictures_[i]);
    CHECK(level <= 1);
    seen_.levels.see(level, where);
  }
  return result;
}

}  // namespace troupe::testing
