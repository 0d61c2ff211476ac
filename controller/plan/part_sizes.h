#pragma once
#include "controller/plan/machine.h"
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Number of items and pictures in one part of a job, so that the part takes about a second at most
/// where single items allow it: a part that has begun is not left for another job's sake, nor,
/// where peers wait in a collective, for a cancel's. A power of two, so that speeds that were
/// measured a little otherwise give the same parts.
struct PartSizes {
  int items = 0;     // batch items of a step of the whole picture; at least 2: a picture's branches
  int pictures = 0;  // that are decoded; at least 1
};

/// Returns the sizes for a plan with stages and patches, by its largest stage and the machine's
/// speed; all at once where the speed is not known. A U-Net takes its items together.
PartSizes part_sizes(const Plan& plan, const spec::ModelSpec& model, const Machine& machine);

}  // namespace troupe::plan
