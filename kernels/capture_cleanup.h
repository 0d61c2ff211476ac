#pragma once

#include <exception>

namespace troupe::kernels {

/// Runs a step that has taken something along the way. Where it throws, `give_back` runs, and the
/// step's exception goes on; what `give_back` throws says nothing more and is dropped.
template <class Step, class GiveBack>
void run_or_clean_up(const Step& step, const GiveBack& give_back) {
  try {
    step();
  } catch (...) {
    try {
      give_back();
    } catch (const std::exception&) {
      // `step` did not take anything yet, or it has been given back already.
    }
    throw;
  }
}

}  // namespace troupe::kernels
