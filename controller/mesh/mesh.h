#pragma once
#include <string>
#include <vector>

namespace troupe::mesh {

/// Number of ways that each axis is split. World = dp × cfg × pp × sp × tp, sp = ring × ulysses.
struct Degrees {
  int dp = 1;
  int cfg = 1;
  int pp = 1;
  int ring = 1;
  int ulysses = 1;
  int tp = 1;

  int sp() const { return ring * ulysses; }
  int world() const { return dp * cfg * pp * sp() * tp; }
  bool operator==(const Degrees&) const = default;
};

/// Place of a rank on each axis.
struct Coordinates {
  int dp = 0;
  int cfg = 0;
  int pp = 0;
  int ring = 0;
  int ulysses = 0;
  int tp = 0;
  bool operator==(const Coordinates&) const = default;
};

/// Returns the rank's place in the group of the axis sp.
inline int sequence_rank(const Degrees& degrees, const Coordinates& at) {
  return at.ring * degrees.ulysses + at.ulysses;
}

/// Axis of a mesh. sp = ring and ulysses; heads = ulysses and tp, who share tokens; stage = ring,
/// ulysses and tp, who share blocks and branch.
enum class Axis { tp, ulysses, ring, sp, pp, cfg, dp, heads, stage };
const char* to_string(Axis axis);

/// The axes that a mesh is split on, the slowest-varying first, and the degree of each.
struct SplitAxis {
  Axis axis;
  int Degrees::*degree;
};
inline constexpr SplitAxis kSplitAxes[] = {
    {Axis::dp, &Degrees::dp},     {Axis::cfg, &Degrees::cfg},         {Axis::pp, &Degrees::pp},
    {Axis::ring, &Degrees::ring}, {Axis::ulysses, &Degrees::ulysses}, {Axis::tp, &Degrees::tp}};

/// Ranks of a world arranged on the axes, fastest-varying first: tp, ulysses, ring, pp, cfg, dp.
/// Any degrees, not only powers of two.
class Mesh {
 public:
  /// Throws std::invalid_argument naming the degree when one is below 1 or cfg is above 2.
  explicit Mesh(Degrees degrees);

  const Degrees& degrees() const { return degrees_; }
  int world() const { return degrees_.world(); }
  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;
  /// Returns the ranks that differ from `rank` on this axis only, in the axis' order; `rank` is
  /// among them.
  std::vector<int> group_of(Axis axis, int rank) const;
  /// Returns all groups of an axis, by their first rank.
  std::vector<std::vector<int>> groups(Axis axis) const;

 private:
  Degrees degrees_;
};

}  // namespace troupe::mesh
