#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "transport/wire/job.h"
#include "transport/wire/job_field.h"

/// Rules that a submission must keep whatever its model is, for all who take one: command, client
/// library and controller. Each function throws BadField, whose text names every field as `steps`,
/// in backquotes; name_fields puts the names in that its reader knows.
namespace troupe::wire {

/// Checks all of a submission that can be checked without its model.
void check_submission(const JobSpec& spec);
/// Checks the request alone, as a client submits it or as a plan has filled it in.
void check_request(const ImageRequest& request);
/// Checks degrees against the request: whether they go together, and there is enough to divide.
void check_degrees(const ImageRequest& request, const Parallelism& degrees);
/// Checks how a job is to stand among others: its priority, and whose it is.
void check_terms(const JobSpec& spec);

/// Returns what a list says of ControlNet number `net`: its only value is all ControlNets', and an
/// empty one says `otherwise`.
double control_value(const std::vector<double>& values, std::size_t net, double otherwise);

/// Returns whether ControlNet number `net` counts in a step of a planned request, by diffusers'
/// rule.
bool control_counts(const ImageRequest& request, std::size_t net, int step);

/// Throws for two fields of which one alone can be given.
[[noreturn]] void refuse_both(JobField one, JobField other);

/// Returns all texts of a request, the negative ones included.
std::vector<std::string> texts_of(const ImageRequest& request);

/// Returns the option by which the command line sets a field, as "--steps"; "" where none does.
std::string option_of(JobField field);

/// Returns a text with `name_of(field)` for each field's name in backquotes, these included; a
/// field for which that is "" stays as it is.
std::string name_fields(const std::string& text,
                        const std::function<std::string(JobField)>& name_of);

}  // namespace troupe::wire
