#include <algorithm>
#include <cstring>
#include <set>

#include "controller/gateway/inspect.h"
#include "controller/jobs/batching.h"

// A job's latents as they are now: asked of those who hold rows, fetched and put together.
namespace troupe::gateway {
namespace {

using wire::FailureCode;

constexpr control::Milliseconds kRenderDeadline{25'000};
constexpr control::Milliseconds kFetchDeadline{20'000};
/// Of the float32 latents of one job; what a controller puts up with.
constexpr std::uint64_t kMostBytes = 1u << 30;
constexpr long kMostAtOnce = 4;

std::uint64_t product(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const auto size : shape) {
    if (size < 0 || (size > 0 && count > kMostBytes / static_cast<std::uint64_t>(size)))
      return kMostBytes;
    count *= static_cast<std::uint64_t>(size);
  }
  return count;
}

}  // namespace

struct InspectDesk::Collection {
  std::shared_ptr<int> counted;
  Asker asker;
  jobs::JobId job = 0;
  bool renders = false;
  bool one_replica = false;  // the first one's pictures are enough
  wire::RowRange own;        // of the pictures: a batch has others', too
  cluster::ActorId renderer = 0;
  std::int64_t pictures = 0;
  std::size_t missing = 0;
  bool failed = false;
  int first_step = 0;
  int last_step = -1;
  std::vector<std::int64_t> shape;  // [n, C, h, w]; empty until the first piece is here
  std::string bytes;
};

void InspectDesk::get_latents(const Asker& asker, const wire::GetLatents& question) {
  const auto* job = job_for(asker, question.job);
  if (!job) return;
  const auto name = "job " + std::to_string(question.job);
  const auto run = tools_.runner.run_of(question.job);
  const auto* notes = tools_.recorder.find(run);
  const auto* computes = tools_.table.find_run(run);
  if (wire::is_terminal(job->state) || !computes || !tools_.runner.dispatcher().has(run) ||
      !notes || notes->attempts.empty()) {
    return refuse(asker, FailureCode::bad_request,
                  name + (wire::is_terminal(job->state) ? " has ended (" : " is not under way (") +
                      wire::to_string(job->state) + "): only a running job has latents");
  }
  if (collecting_.use_count() > kMostAtOnce) {
    return refuse(
        asker, FailureCode::overloaded,
        std::to_string(kMostAtOnce) + " jobs' latents are being collected: try again later");
  }
  const auto& actors = notes->attempts.back().actor_of_rank;
  auto collection = std::make_shared<Collection>();
  collection->counted = collecting_;
  collection->asker = asker;
  const auto& plan = computes->plan;
  collection->job = run;
  collection->renders = question.render;
  collection->renderer = actors.at(static_cast<std::size_t>(plan.decode_rank(0)));
  collection->pictures = plan.picture_count();
  collection->own = {0, plan.picture_count()};
  if (!computes->members.empty())
    collection->own = jobs::member_of(*computes, question.job).pictures;
  collection->first_step = plan.request.steps;
  std::set<cluster::ActorId> holders;
  // A rough picture shows the first one, which most often the first replica has.
  collection->one_replica = question.render && collection->own.begin == 0;
  const int replicas = collection->one_replica ? 1 : plan.degrees.dp;
  for (int dp = 0; dp < replicas; ++dp) {
    for (const int rank : plan.latent_holders(dp))
      holders.insert(actors.at(static_cast<std::size_t>(rank)));
  }
  collection->missing = holders.size();
  for (const auto holder : holders)
    ask_holder(collection, holder);
}

void InspectDesk::ask_holder(const std::shared_ptr<Collection>& collection, cluster::ActorId id) {
  const auto& actor = tools_.members.at(id);
  tools_.outside.request(
      actor.peer, wire::GetLatentRows{collection->job}, kActorDeadline,
      [this, collection, id, incarnation = actor.incarnation](const control::Reply& answer) {
        if (!answer) {
          return fail(*collection, {answer.failure().code,
                                    "actor " + std::to_string(id) + ": " + answer.failure().what});
        }
        const auto rows = answer.as<wire::LatentRows>();
        tools_.outside.fetch_blob(incarnation, rows.blob, kFetchDeadline,
                                  [this, collection, rows](const control::BlobResult& blob) {
                                    if (collection->failed) return;
                                    if (!blob) return fail(*collection, blob.failure);
                                    add_rows(*collection, rows, *blob.bytes);
                                    if (!collection->failed && --collection->missing == 0)
                                      collected(collection);
                                  });
      });
}

void InspectDesk::fail(Collection& collection, const wire::Failure& failure) {
  if (std::exchange(collection.failed, true)) return;
  reply(collection.asker, failure);
}

void InspectDesk::add_rows(Collection& collection, const wire::LatentRows& rows,
                           const std::string& bytes) {
  const auto wrong = [&] {
    fail(collection, {FailureCode::protocol, "latents whose bytes do not fit their shape"});
  };
  if (rows.shape.size() != 4) return wrong();
  auto shape = rows.shape;
  shape[0] = collection.one_replica ? rows.shape[0] : collection.pictures;
  if (product(shape) > kMostBytes / sizeof(float))
    return fail(collection, {FailureCode::overloaded, "the latents are larger than 1 GiB"});
  if (collection.shape.empty()) {
    collection.shape = shape;
    collection.bytes.assign(product(shape) * sizeof(float), '\0');
  }
  std::int64_t height = 0;
  for (const auto& run : rows.runs) {
    if (run.begin < 0 || run.end < run.begin || run.end > shape[2]) return wrong();
    height += run.end - run.begin;
  }
  const auto first = collection.one_replica ? 0 : rows.first_image;
  const bool fits =
      shape == collection.shape && first >= 0 && first + rows.shape[0] <= collection.shape[0] &&
      bytes.size() == product({rows.shape[0], shape[1], height, shape[3]}) * sizeof(float);
  if (!fits) return wrong();
  const auto row_bytes = static_cast<std::size_t>(shape[3]) * sizeof(float);
  const char* from = bytes.data();
  for (std::int64_t image = 0; image < rows.shape[0]; ++image) {
    for (std::int64_t channel = 0; channel < shape[1]; ++channel) {
      const auto plane = ((first + image) * shape[1] + channel) * shape[2];
      for (const auto& run : rows.runs) {
        const auto run_bytes = static_cast<std::size_t>(run.end - run.begin) * row_bytes;
        std::memcpy(
            collection.bytes.data() + static_cast<std::size_t>(plane + run.begin) * row_bytes, from,
            run_bytes);
        from += run_bytes;
      }
    }
  }
  collection.first_step = std::min(collection.first_step, rows.first_step);
  collection.last_step = std::max(collection.last_step, rows.last_step);
}

void InspectDesk::collected(const std::shared_ptr<Collection>& collection) {
  if (!collection->one_replica) {
    const auto& own = collection->own;
    const wire::RowRange all{0, static_cast<std::int32_t>(collection->pictures)};
    if (own != all) collection->bytes = jobs::cut_pictures(collection->bytes, all, own);
    collection->shape[0] = own.end - own.begin;
  }
  if (collection->renders) return render(collection);
  reply(collection->asker,
        wire::JobLatents{collection->first_step, collection->last_step,
                         keep("latents", std::move(collection->bytes), collection->shape)});
}

void InspectDesk::render(const std::shared_ptr<Collection>& collection) {
  collection->bytes.resize(
      collection->bytes.size() /
      static_cast<std::size_t>(std::max<std::int64_t>(1, collection->shape[0])));
  collection->shape[0] = 1;
  const auto latents = keep("latents", std::move(collection->bytes), collection->shape);
  const auto& actor = tools_.members.at(collection->renderer);
  tools_.outside.request(
      actor.peer, wire::RenderLatents{collection->job, latents}, kRenderDeadline,
      [this, collection, incarnation = actor.incarnation](const control::Reply& answer) {
        if (!answer) return fail(*collection, answer.failure());
        tools_.outside.fetch_blob(
            incarnation, answer.as<wire::Rendered>().png, kFetchDeadline,
            [this, collection](const control::BlobResult& png) {
              if (!png) return fail(*collection, png.failure);
              reply(collection->asker,
                    wire::JobLatents{collection->first_step, collection->last_step,
                                     keep("preview", *png.bytes)});
            });
      });
}

}  // namespace troupe::gateway
