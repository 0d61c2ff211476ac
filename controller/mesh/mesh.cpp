#include "controller/mesh/mesh.h"

#include <stdexcept>

#include "base/format.h"

namespace troupe::mesh {
namespace {

void require_degree(const char* name, int degree) {
  if (degree < 1) {
    throw std::invalid_argument(
        fmt::format("[mesh] {} is {}: a degree is at least 1", name, degree));
  }
}

}  // namespace

const char* to_string(Axis axis) {
  switch (axis) {
    case Axis::tp:
      return "tp";
    case Axis::ulysses:
      return "ulysses";
    case Axis::ring:
      return "ring";
    case Axis::sp:
      return "sp";
    case Axis::pp:
      return "pp";
    case Axis::cfg:
      return "cfg";
    case Axis::dp:
      return "dp";
    case Axis::heads:
      return "heads";
    case Axis::stage:
      return "stage";
  }
  return "?";
}

Mesh::Mesh(Degrees degrees) : degrees_(degrees) {
  require_degree("dp", degrees.dp);
  require_degree("cfg", degrees.cfg);
  require_degree("pp", degrees.pp);
  require_degree("ring", degrees.ring);
  require_degree("ulysses", degrees.ulysses);
  require_degree("tp", degrees.tp);
  if (degrees.cfg > 2) {
    throw std::invalid_argument(
        fmt::format("[mesh] cfg is {}: guidance has two branches, so cfg is 1 or 2", degrees.cfg));
  }
}

Coordinates Mesh::coordinates(int rank) const {
  if (rank < 0 || rank >= world()) {
    throw std::invalid_argument(
        fmt::format("[mesh] rank {} is outside a world of {}", rank, world()));
  }
  const auto next = [&rank](int degree) {
    const int at = rank % degree;
    rank /= degree;
    return at;
  };
  Coordinates at;
  at.tp = next(degrees_.tp);
  at.ulysses = next(degrees_.ulysses);
  at.ring = next(degrees_.ring);
  at.pp = next(degrees_.pp);
  at.cfg = next(degrees_.cfg);
  at.dp = next(degrees_.dp);
  return at;
}

int Mesh::rank(const Coordinates& at) const {
  int rank = at.dp;
  rank = rank * degrees_.cfg + at.cfg;
  rank = rank * degrees_.pp + at.pp;
  rank = rank * degrees_.ring + at.ring;
  rank = rank * degrees_.ulysses + at.ulysses;
  return rank * degrees_.tp + at.tp;
}

std::vector<int> Mesh::group_of(Axis axis, int member) const {
  Coordinates at = coordinates(member);
  std::vector<int> ranks;
  const auto sweep = [&](int Coordinates::*along, int degree) {
    for (at.*along = 0; at.*along < degree; ++(at.*along))
      ranks.push_back(rank(at));
  };
  switch (axis) {
    case Axis::tp:
      sweep(&Coordinates::tp, degrees_.tp);
      break;
    case Axis::ulysses:
      sweep(&Coordinates::ulysses, degrees_.ulysses);
      break;
    case Axis::ring:
      sweep(&Coordinates::ring, degrees_.ring);
      break;
    case Axis::pp:
      sweep(&Coordinates::pp, degrees_.pp);
      break;
    case Axis::cfg:
      sweep(&Coordinates::cfg, degrees_.cfg);
      break;
    case Axis::dp:
      sweep(&Coordinates::dp, degrees_.dp);
      break;
    case Axis::sp:
      for (at.ring = 0; at.ring < degrees_.ring; ++at.ring)
        sweep(&Coordinates::ulysses, degrees_.ulysses);
      break;
    case Axis::heads:
      for (at.ulysses = 0; at.ulysses < degrees_.ulysses; ++at.ulysses)
        sweep(&Coordinates::tp, degrees_.tp);
      break;
    case Axis::stage:
      for (at.ring = 0; at.ring < degrees_.ring; ++at.ring) {
        for (at.ulysses = 0; at.ulysses < degrees_.ulysses; ++at.ulysses)
          sweep(&Coordinates::tp, degrees_.tp);
      }
      break;
  }
  return ranks;
}

std::vector<std::vector<int>> Mesh::groups(Axis axis) const {
  std::vector<std::vector<int>> all;
  for (int member = 0; member < world(); ++member) {
    std::vector<int> ranks = group_of(axis, member);
    if (ranks.front() == member) all.push_back(std::move(ranks));
  }
  return all;
}

}  // namespace troupe::mesh
