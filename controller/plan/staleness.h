#pragma once
#include <optional>
#include <string>

#include "controller/plan/planner.h"

namespace troupe::plan {

/// Returns the PSNR against the exact method of the demo checkpoint's final latents, in decibels of
/// their range, with as many steps by the plan's method (docs/methods.md). Other models differ, but
/// all lose most where steps are few, for then much changes from one to the next. Nothing where no
/// patch uses values of an earlier step, or all do what nobody measured.
std::optional<double> measured_psnr(const Plan& plan);

/// Puts a warning into a plan whose picture may come far from the exact one.
void warn_of_staleness(Plan& plan);

/// Returns a sentence on degrees that were picked for a request with old values: what the quickest
/// exact mix on as many actors is predicted to take; "" where old values save a tenth of the time
/// or more and cost little. `seconds`: what the plan is predicted to take.
std::string exact_instead(const spec::ModelSpec& model, const wire::ImageRequest& request,
                          const Plan& plan, double seconds, int actors, const Machine& machine,
                          const Limits& limits = {});

}  // namespace troupe::plan
