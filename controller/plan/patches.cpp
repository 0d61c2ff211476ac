#include "controller/plan/patches.h"

#include <algorithm>
#include <string>

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/refuse.h"

namespace troupe::plan {

std::vector<wire::RowRange> split_evenly(int count, int parts) {
  std::vector<wire::RowRange> runs;
  int begin = 0;
  for (int part = 0; part < parts; ++part) {
    const int size = count / parts + (part < count % parts ? 1 : 0);
    runs.push_back({begin, begin + size});
    begin += size;
  }
  return runs;
}

std::vector<wire::RowRange> batch_parts(int batch, int pp, int most) {
  const int filling = pp == 1 ? 1 : std::min(batch, 2 * pp);
  return split_evenly(batch, std::max(filling, (batch + most - 1) / most));
}

std::vector<wire::RowRange> split_rows(int rows, int patches) {
  if (patches < 1) {
    refuse(JobField::num_pipeline_patch,
           fmt::format("patches is {}: at least 1 is needed", patches));
  }
  if (patches > rows) {
    refuse(JobField::num_pipeline_patch,
           fmt::format("patches is {}, but the picture has only {}: each patch needs one", patches,
                       counted(rows, "token row")));
  }
  return split_evenly(rows, patches);
}

}  // namespace troupe::plan
