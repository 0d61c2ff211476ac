#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/job.h"
#include "transport/wire/kind.h"

/// Seeing a job's values while it runs: its tensors, parts of them, its latents, a rough picture.
/// Asked as what is in inspect_messages.h; every request may be answered by Failure instead.
namespace troupe::wire {

/// client → controller → actor: what the job keeps there. Answered by TensorReport, between two
/// messages of the actor's mailbox.
struct GetTensors {
  static constexpr Kind kKind = Kind::get_tensors;
  std::uint32_t actor = 0;
  std::uint64_t job = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, job);
  }
};

struct TensorRow {
  std::string name;  // "latents", "kv block 3 keys", "caption", "received step 4 patch 1"
  std::vector<std::int64_t> shape;
  std::string dtype;
  double mean = 0;  // of the finite values
  double min = 0;
  double max = 0;
  std::uint64_t not_finite = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, shape, dtype, mean, min, max, not_finite);
  }
};

struct TensorReport {
  static constexpr Kind kKind = Kind::tensor_report;
  std::string at;  // the job's last task there: "step 5 patch 1"
  std::vector<TensorRow> tensors;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(at, tensors);
  }
};

/// Range of one dimension: [begin, end); negative numbers count from the end, end 0 with `whole` is
/// all.
struct SliceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool whole = true;    // the whole dimension
  bool single = false;  // `begin` only, and the dimension goes

  template <class Archive>
  void serialize(Archive& ar) {
    ar(begin, end, whole, single);
  }
  bool operator==(const SliceRange&) const = default;
};

/// client → controller → actor. Answered by TensorSlice, between two messages.
struct GetSlice {
  static constexpr Kind kKind = Kind::get_slice;
  std::uint32_t actor = 0;
  std::uint64_t job = 0;
  std::string name;
  std::vector<SliceRange> ranges;  // of the first dimensions; the others are whole

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, job, name, ranges);
  }
};

/// Largest number of values in a slice; more is refused.
inline constexpr std::int64_t kMaxSliceValues = 4096;
struct TensorSlice {
  static constexpr Kind kKind = Kind::tensor_slice;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<double> values;  // row-major

  template <class Archive>
  void serialize(Archive& ar) {
    ar(dtype, shape, values);
  }
};

/// client → controller: the job's latents as they are now, put together from those who hold them.
/// Answered by JobLatents.
struct GetLatents {
  static constexpr Kind kKind = Kind::get_latents;
  std::uint64_t job = 0;
  bool render = false;  // a PNG of the first picture, made by one of the job's actors, instead

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, render);
  }
};

struct JobLatents {
  static constexpr Kind kKind = Kind::job_latents;
  std::int32_t first_step = -1;  // step that the least advanced of the pieces has; -1 = the noise
  std::int32_t last_step = -1;   // step that the most advanced of the pieces has
  BlobRef blob;                  // float32 [n, C, h, w], or a PNG file

  template <class Archive>
  void serialize(Archive& ar) {
    ar(first_step, last_step, blob);
  }
};

/// controller → actor: the rows of latents that it holds. Answered by LatentRows, between two
/// messages.
struct GetLatentRows {
  static constexpr Kind kKind = Kind::get_latent_rows;
  std::uint64_t job = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job);
  }
};

/// A run of latent rows (of pixels of the latents, not of tokens).
struct LatentRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(begin, end);
  }
};

struct LatentRows {
  static constexpr Kind kKind = Kind::latent_rows;
  std::int32_t first_step = -1;  // step that all of these rows have completed; -1 = the noise
  std::int32_t last_step = -1;   // step that some of these rows have completed
  std::int64_t first_image = 0;
  std::vector<std::int64_t> shape;  // [images here, C, h, w]: of the whole pictures
  std::vector<LatentRun> runs;      // of h, in the order in which the blob has them
  BlobRef blob;                     // float32 [images here, C, rows of the runs, w], at the actor

  template <class Archive>
  void serialize(Archive& ar) {
    ar(first_step, last_step, first_image, shape, runs, blob);
  }
};

/// controller → actor of the job: a rough picture of these latents. Answered by Rendered.
struct RenderLatents {
  static constexpr Kind kKind = Kind::render_latents;
  std::uint64_t job = 0;
  BlobRef latents;  // at the controller, float32 [1, C, h, w]

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, latents);
  }
};

struct Rendered {
  static constexpr Kind kKind = Kind::rendered;
  BlobRef png;  // at the actor

  template <class Archive>
  void serialize(Archive& ar) {
    ar(png);
  }
};

}  // namespace troupe::wire
