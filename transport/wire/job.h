#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/choices.h"

namespace troupe::wire {

/// An adapter that is added to a model's own weights. The file lies where every actor's host sees
/// it.
struct Lora {
  std::string path;  // of any kind and naming of docs/lora.md
  double scale = 1;
  bool of_second = false;  // what it has for the transformer is for the second one, transformer_2

  bool operator==(const Lora&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(path, scale, of_second);
  }
};

/// A textual inversion: a word that prompts use and what the text encoders have for it. The file
/// lies where every actor's host sees it.
struct Embedding {
  std::string path;   // safetensors, or a file of torch.save
  std::string token;  // the word; "" = the one that the file names, which the controller fills in
  std::uint64_t fingerprint = 0;  // of the file's bytes, filled in by the controller

  bool operator==(const Embedding&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(path, token, fingerprint);
  }
};

/// A tensor that travels in a blob with others.
struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;

  bool operator==(const NamedShape&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, shape);
  }
};

/// A picture, as a PNG, that a request brings along in a blob. Its pixels are a client's word until
/// it has come, then what its header says.
struct SentPicture {
  std::uint64_t blob = 0;  // 0 = it has not come
  std::uint64_t bytes = 0;
  std::int32_t height = 0;
  std::int32_t width = 0;

  bool operator==(const SentPicture&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(blob, bytes, height, width);
  }
};

/// Run of pictures that follow each other in a batch and share a seed: their noise is what a batch
/// of them alone would have.
struct SeedRun {
  std::int32_t pictures = 0;
  std::uint64_t seed = 0;

  bool operator==(const SeedRun&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(pictures, seed);
  }
};

/// Everything that decides which picture comes out; degrees are not in here. Its members, with what
/// each means, are the lines of request_fields.def.
struct ImageRequest {
#define REQUEST_FIELD(type, name, initial, ...) type name = initial;
#define FILLED_FIELD(type, name, initial) type name = initial;
#include "transport/wire/request_fields.def"

  template <class Archive>
  void serialize(Archive& ar) {
#define REQUEST_FIELD(type, name, initial, ...) ar(name);
#define FILLED_FIELD(type, name, initial) ar(name);
#include "transport/wire/request_fields.def"
  }
};

/// Degrees: how many actors compute the picture. They never change it.
struct Parallelism {
  std::int32_t dp = 1;
  std::int32_t cfg = 1;
  std::int32_t pp = 1;
  std::int32_t ulysses = 1;
  std::int32_t ring = 1;
  std::int32_t tp = 1;
  std::int32_t vae = 1;                   // actors that decode a replica's pictures together
  std::vector<std::int32_t> stages = {};  // blocks of each stage; empty = split by cost
  bool automatic = false;                 // the controller picks the degrees

  template <class Archive>
  void serialize(Archive& ar) {
    ar(dp, cfg, pp, ulysses, ring, tp, vae, stages, automatic);
  }
  bool operator==(const Parallelism&) const = default;
};

/// Job as a client submits it: the pictures wanted, from which model, on how many actors.
struct JobSpec {
  std::string
      model;  // folder in diffusers layout; "" = the model that the cluster was started with
  ImageRequest request;
  Parallelism parallelism;
  std::int32_t priority = 0;  // higher goes first, -100 to 100
  std::string share;     // whose share it counts for when shares are made fair; "" = the client's
  bool elastic = false;  // after a loss that is not made good, go on with fewer actors
  /// May compute as one batch with other jobs that differ in prompts and seed only: sums are then
  /// rounded otherwise than alone.
  bool may_batch = false;
  /// Name of the one for whom the client hands the job in, as a gateway does for its keys; "" = for
  /// itself. The controller keeps the name with the job and reports it.
  std::string on_behalf_of = {};

  template <class Archive>
  void serialize(Archive& ar) {
    ar(model, request, parallelism, priority, share, elastic, may_batch, on_behalf_of);
  }
};

/// A blob that somebody holds and the receiver of this reference may fetch.
struct BlobRef {
  std::string name;  // what it is: "picture", "latents", "preview"
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> shape;  // of tensors; empty for files

  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, id, bytes, shape);
  }
};

}  // namespace troupe::wire
