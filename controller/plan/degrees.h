#pragma once
#include "controller/mesh/mesh.h"
#include "transport/wire/job.h"

namespace troupe::plan {

/// Returns the mesh that a job asks for; its stages and decoders are no axes.
inline mesh::Degrees degrees_of(const wire::Parallelism& asked) {
  return {.dp = asked.dp,
          .cfg = asked.cfg,
          .pp = asked.pp,
          .ring = asked.ring,
          .ulysses = asked.ulysses,
          .tp = asked.tp};
}

/// Returns what a job asks for that wants this mesh, `vae` decoders, and stages split by cost.
inline wire::Parallelism parallelism_of(const mesh::Degrees& degrees, int vae = 1) {
  return {.dp = degrees.dp,
          .cfg = degrees.cfg,
          .pp = degrees.pp,
          .ulysses = degrees.ulysses,
          .ring = degrees.ring,
          .tp = degrees.tp,
          .vae = vae};
}

}  // namespace troupe::plan
