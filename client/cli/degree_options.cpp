#include "client/cli/field_options.h"
#include "client/cli/options.h"
#include "client/cli/request_options.h"

namespace troupe::cli {

namespace {

void add_degree(Options& app, const wire::DegreeField& field, int& degree,
                const std::string& heading) {
  app.add_option(std::string(field.option), degree, std::string(field.help))
      ->check(whole(1, field.most))
      ->type_name("N")
      ->capture_default_str()
      ->group(heading);
}

}  // namespace

void add_degree_options(Options& app, RequestOptions& options) {
  const std::string group =
      "Parallelism (--method, --patches, --warmup, --refill-steps, --kv, --step-cache, "
      "--step-cache-threshold, --group-norm and --exchange change the picture, the rest does not)";
  app.add_option(std::string(wire::kRequestFields.method.option), options.method,
                 "exact, pipefusion or distrifusion; default: pipefusion when --patches > 1")
      ->check(one_of(choice_words<Method>()))
      ->type_name("NAME")
      ->group(group);
  add_field_options(app, options.request, wire::Group::parallelism, group);
#define DEGREE_FIELD(name, option, most, help) \
  add_degree(app, wire::kDegreeFields.name, options.parallelism.name, group);
#include "transport/wire/degree_fields.def"
  app.add_list_option("--stages", options.parallelism.stages,
                      "Blocks of each pipeline stage, as 7,7,7,7; default: split by cost",
                      whole(1, wire::kMaxDegree))
      ->type_name("LIST")
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.automatic), options.parallel,
                 "auto = pick the degrees for the actors at hand")
      ->check(one_of({"auto"}))
      ->type_name("auto")
      ->group(kUsualOptions);
}

void add_elastic_option(Options& app, RequestOptions& options) {
  app.add_flag(std::string(wire::kJobOptions.elastic), options.elastic,
               "Go on with fewer actors when lost ones do not come back: degrees are picked anew");
}

void add_queue_options(Options& app, RequestOptions& options) {
  const std::string group = "Queue";
  app.add_option(std::string(wire::kJobOptions.priority), options.priority,
                 "Jobs of higher priority go first, -100 to 100")
      ->check(whole(-100, 100))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--share", options.share,
                 "Whom the job counts for: shares get as much as each other; default: the client")
      ->check(Check([](std::string& text) -> std::string {
        if (text.empty()) return "is empty";
        return text.size() <= 64 ? "" : "the name is longer than 64 bytes";
      }))
      ->type_name("NAME")
      ->group(group);
  app.add_flag(std::string(wire::kJobOptions.may_batch), options.may_batch,
               "Compute as one batch with waiting jobs that allow it too and differ in prompts and "
               "seed only, not in what comes back (last bits may change)")
      ->group(group);
}

}  // namespace troupe::cli
