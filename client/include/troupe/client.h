#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "troupe/result.h"
#include "troupe/states.h"

/// The C++ client API of Troupe. Only the standard library is needed to include it.
///
///   auto client = troupe::Client::connect("ipc:///tmp/troupe/control.sock");
///   troupe::Submission submission;
///   submission.request.prompts = {"a red circle above a blue square"};
///   auto job = client.value().submit(submission);
///   auto result = client.value().wait(job.value(), std::chrono::minutes(5));
///   save(result.value().pictures[0].png);
namespace troupe {

/// Tensor of float32, row-major.
struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> data;
};

/// Latents of a batch, [n, channels, rows, columns]: height / 8 and width / 8 of most models.
using Latents = Tensor;

/// Adapter that is added to a model's own weights, times `scale`: of any kind and naming of
/// docs/lora.md. The file lies where the cluster sees it. Of a model's two transformers it is for
/// the first, or `of_second`.
struct Lora {
  std::string path;
  double scale = 1;
  bool of_second = false;
};

/// A textual inversion (safetensors, .pt or .bin), which lies where the cluster sees it, and the
/// word that prompts have for it; "" = the one that the file names.
struct Embedding {
  std::string path;
  std::string token = {};
};

/// Pictures that are wanted. These fields alone decide them; the degrees below never do.
struct ImageRequest {
  std::vector<std::string> prompts;
  std::optional<std::string> negative_prompt = {};  // none is another thing than "" to SDXL
  std::vector<std::string> negative_prompts = {};   // one for each prompt or picture instead
  /// Instead of prompts the text encoders' output, with the names and shapes of diffusers'
  /// pipelines: "prompt_embeds" [prompts, tokens, width], "negative_prompt_embeds",
  /// "pooled_prompt_embeds" [prompts, width], "prompt_attention_mask" [prompts, tokens] of ones,
  /// then zeros, …; docs/commands.md says which of them a model takes. Without a negative one the
  /// negative prompt is encoded; else no text encoder is loaded.
  std::map<std::string, Tensor> prompt_embeds = {};
  int images_per_prompt = 1;
  int height = 0;  // pixels; 0 = the model's native size
  int width = 0;
  int num_frames = 0;  // of a video: 4k + 1; 0 = the model's own number; pictures have 1
  int steps = 0;       // 0 = the model's own number, as in diffusers' pipeline of its class
  std::optional<double> guidance_scale = {};    // none = the model's own likewise
  std::optional<double> guidance_scale_2 = {};  // of a second transformer; none = guidance_scale
  std::uint64_t seed = 0;
  /// One seed per picture, as a list of generators in diffusers: each picture is as with its seed
  /// alone.
  std::vector<std::uint64_t> picture_seeds = {};
  double eta = 0;                      // of ddim: noise that steps add, 0 to 1
  std::vector<double> timesteps = {};  // timesteps to go through, falling, instead of `steps`
  std::vector<double> sigmas = {};     // noise levels, falling, instead of `steps`; one of the two
  std::string sampler;                 // "" = the checkpoint's own; else a name of docs/commands.md
  std::string method = "exact";        // exact | pipefusion | distrifusion
  int num_pipeline_patch = 1;          // patches of pipefusion and distrifusion
  int warmup_steps = 1;                // pipefusion, distrifusion: synchronous steps at the start
  std::string kv = "stale";            // stale | predict: how K,V that are not fresh are used
  std::string group_norm =
      "corrected";  // U-Net, distrifusion: corrected | stale | synchronous | separate
  std::string exchange = "stale";  // U-Net, distrifusion: stale | none | all; naive
  /// Steps after the warm-up that pipefusion and distrifusion compute whole, from an empty K,V
  /// store. The report names them where a job went on after a loss; with them the picture can be
  /// made again.
  std::vector<int> refill_steps = {};
  std::string step_cache;  // "" | first-block | teacache: steps that change little are skipped
  double step_cache_threshold = 0;  // largest relative change that is skipped; 0 = the cache's own
  std::string dtype = "float32";    // float32 | bfloat16 | float16
  /// Type in which the denoiser keeps its linear layers' weights: "" (as it computes) | int8 (CPU)
  /// | fp8 (GPU).
  std::string weight_dtype;
  /// Offload: "" | blocks: keep two of a stage's blocks in memory and read each when its turn
  /// comes.
  std::string offload;
  std::string noise_dtype = "float32";
  int max_sequence_length = 0;      // text tokens; 0: as many as the model is used to
  bool resolution_binning = false;  // compute at a size of training, then resize
  bool clean_caption = false;       // clean prompts as the captions of training were
  bool vae_tiling = false;          // decode in overlapping tiles: less memory, another picture
  /// Output: picture | latent. With latent no picture is decoded, and the final latents come back
  /// alone.
  std::string output_type = "picture";
  bool want_latents = false;
  std::optional<Latents>
      init_latents;        // replaces the seed's noise: unit variance, before sampler scaling
  std::string init_image;  // a PNG, JPEG or WebP file to start from; "" = noise alone
  std::optional<double> strength = {};  // with it: the part of the steps that are done, above 0, up
                                        // to 1; none = the model's own
  std::string mask_image;               // with it: a file whose white is painted anew; "" = all is
  /// Pictures, as PNG, JPEG or WebP files, that the model takes beside the text: to edit, or a
  /// video's first frame; at most 4.
  std::vector<std::string> images = {};
  /// True: `images` are what diffusers' pipelines call image. Where the model takes none beside the
  /// text, the only one is its init_image.
  bool images_as_taken = false;
  std::string last_image;  // a video's last frame, a file likewise; "" = none
  /// Pictures, files likewise, that say where things stand (edges, depth, a pose): one for each
  /// ControlNet, the model's own ones first, or the one that the model takes beside the text.
  std::vector<std::string> control_images = {};
  /// ControlNets beside the model's own: folders that lie where the cluster sees them, or names on
  /// the Hugging Face hub.
  std::vector<std::string> controlnets = {};
  /// Scale of each ControlNet, and the parts of the steps, 0 to 1, from and until which it counts;
  /// one value is all ControlNets', and none is 1, 0 and 1.
  std::vector<double> control_scale = {}, control_from = {}, control_until = {};
  double guidance_rescale = 0;   // 0 to 1: guided predictions get the deviation of the text's own
  std::vector<Lora> loras = {};  // added up, in this order
  std::vector<Embedding> embeddings = {};  // of Stable Diffusion, SDXL and FLUX
  int progress_interval = 0;     // every how many steps progress carries latents or a preview
  int progress_count = 0;        // without an interval: how often, evenly over the steps
  std::string progress_content;  // "" | latents | preview
};

/// Degrees of parallelism. A job runs on dp × cfg × pp × ulysses × ring × tp actors. Degrees never
/// change the picture.
struct Parallelism {
  int dp = 1;                    // replicas that pictures are split over
  int cfg = 1;                   // 2 = guidance branches on actors of their own
  int pp = 1;                    // pipeline stages that the blocks are split over
  int ulysses = 1;               // sequence parallel over heads
  int ring = 1;                  // sequence parallel over K,V blocks
  int tp = 1;                    // tensor parallel: heads and feed-forward columns
  int vae = 1;                   // actors that decode a replica's pictures together
  std::vector<int> stages = {};  // blocks of each stage; empty = split by cost
  bool automatic = false;        // the controller picks the degrees, within the cluster's actors

  std::int64_t world() const { return std::int64_t{dp} * cfg * pp * ulysses * ring * tp; }
};

struct Submission {
  ImageRequest request;
  Parallelism parallelism = {};
  std::string model = {};  // "" = the cluster's model
  bool detached = false;   // goes on when this client is gone
  int priority = 0;        // higher goes first, -100 to 100
  std::string share = {};  // whose share the job counts for; "" = this client's
  /// Go on with fewer actors after a loss that is not made good. The picture stays the same, as
  /// ever.
  bool elastic = false;
  /// May compute as one batch with other jobs that allow it and differ in prompts and seed only.
  /// The job's sums are then rounded otherwise than alone, so its last bits are not repeatable.
  bool may_batch = false;
  /// Name of the one for whom this client hands the job in, up to 64 bytes; "" = for itself. The
  /// controller keeps the name with the job, in its journal, too, and returns it in JobInfo.
  std::string on_behalf_of = {};
  /// Key of this submission, drawn at random by whoever may have to hand the same job in again
  /// because nobody answered: under one key a job is accepted once. 0 = a key that `submit` draws.
  std::uint64_t key = 0;
};

struct Progress {
  std::uint64_t job = 0;
  JobPhase phase = JobPhase::queued;
  int step = 0;
  int steps = 0;
  double seconds_per_step = 0;     // mean of the last steps; 0 while unknown: see docs/commands.md
  int queue_position = 0;          // jobs that waited before it when it was accepted
  std::optional<Latents> latents;  // when asked for
  std::string preview_png;         // when asked for: the first picture, rough and small, PNG bytes
  int interim_step = 0;  // completed steps of the latents or the preview; not after `step`
  std::vector<std::string> warnings;
  std::optional<double> timestep = {};  // the sampler's timestep of the last completed step
};

struct Picture {
  std::string png;  // the file's bytes, with its parameters as text chunks
};

struct JobResult {
  std::uint64_t job = 0;
  std::vector<Picture> pictures;   // prompt-major; none with output_type latent
  std::optional<Latents> latents;  // when want_latents was set, or output_type latent
  std::string report;              // JSON: seed, plan, seconds, bytes, memory
};

struct JobInfo {
  std::uint64_t id = 0;
  JobState state = JobState::queued;
  std::string prompt;
  int pictures = 0;
  int step = 0;
  int steps = 0;
  double seconds = 0;
  std::string cause;  // of its failure, of its waiting, or of its pause where it met a NaN
  int priority = 0;
  std::string share;
  std::uint64_t batch = 0;               // number of the batch that it computes or has computed in
  std::vector<std::uint64_t> with_jobs;  // the others of that batch that the cluster remembers
  std::string not_batched;               // why it began by itself, although it may batch
  int queue_position = 0;                // jobs that wait before it, while it is queued
  std::string model;                     // its folder
  std::uint64_t seed = 0;                // of its first picture
  bool own_seeds = false;                // each of its pictures has a seed of its own
  Parallelism parallelism = {};          // the degrees that it is planned for; without its stages
  std::string on_behalf_of = {};         // as its submission said
};

/// Selection of jobs. Their order: those that run, those that wait, by their turns, those that have
/// ended, the newest first.
struct JobQuery {
  std::uint64_t job = 0;  // only this one, and those that it computes with; 0 = all
  std::size_t skip = 0;   // how many jobs to leave out at the beginning of the order
  std::size_t most = 0;   // how many jobs at most after those; 0 = all
};

struct JobPage {
  std::vector<JobInfo> jobs;  // by their numbers
  std::size_t all = 0;        // number of all jobs, with those that are not on the page
};

struct GroupInfo {
  std::string axis;
  std::vector<int> ranks;
  int rank_in_group = 0;
};

struct ActorInfo {
  std::uint32_t id = 0;
  std::uint64_t incarnation = 0;
  ActorState state = ActorState::starting;
  std::string host, device, doing;
  std::uint32_t pid = 0;
  int local_rank = 0;
  std::vector<GroupInfo> groups;
  std::uint64_t restarts = 0;
  std::uint64_t memory_bytes = 0;
};

struct ClusterInfo {
  std::string version, host, endpoint, model;
  std::uint32_t pid = 0;
  double uptime_seconds = 0;
  std::vector<ActorInfo> actors;
  std::uint32_t jobs_queued = 0, jobs_running = 0, jobs_ended = 0;
  std::vector<std::string> recent_failures;
};

class Actors;

/// A connection to a cluster. Thread-safe; callbacks come on the client's own thread and must not
/// block it. Where the controller keeps a journal and is lost, `submit` and `wait` look for it for
/// 60 s and go on with the controller that is started again, as if nothing had been; progress then
/// says so, on the thread inside `wait`.
class Client {
 public:
  /// Connects to the controller at `endpoint` (ipc://PATH, tcp://HOST:PORT or HOST:PORT); empty =
  /// the one that the command `troupe` finds: TROUPE_ADDRESS, else `connect` in the file of
  /// defaults, else the user's own cluster. Errors: bad_request (no such kind of endpoint, or keys
  /// or a file that cannot be used), unreachable (nobody is there), timeout (somebody listens and
  /// does not answer), version_mismatch, refused (also for missing or wrong keys). `keys`: the
  /// folder with `server.pub` and `client.key` (`troupe keys`), for tcp controllers that ask for
  /// keys; empty = what TROUPE_KEYS names, else without an endpoint `keys` in that file. `stop`
  /// ends this and every later look for a controller at once: error interrupted.
  static Result<Client> connect(const std::string& endpoint = {},
                                std::chrono::milliseconds timeout = std::chrono::seconds(5),
                                const std::string& keys = {}, std::stop_token stop = {});
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  using OnProgress = std::function<void(const Progress&)>;
  using OnEnd = std::function<void(const Result<JobResult>&)>;
  using OnSubmitted = std::function<void(const Result<std::uint64_t>&)>;

  /// Hands a job in and returns its id as soon as the controller has accepted or refused it (within
  /// 30 s). `on_progress` is called in order; what was asked for with the progress is already
  /// fetched. Errors: bad_request, overloaded, refused, lost, timeout.
  Result<std::uint64_t> submit(const Submission& submission, OnProgress on_progress = nullptr);
  /// Same as `submit` above, for programs that hand in many jobs: comes back at once, and `then` is
  /// called exactly once, on the client's own thread. This one does not look for a controller that
  /// was started again: then the error is lost, and the job may have been accepted
  /// (`Submission::key`).
  void submit(const Submission& submission, OnProgress on_progress, OnSubmitted then);
  /// Returns nothing if the cluster would take the job now, else why it would not. Neither the job
  /// nor what it begins with is kept there. Errors as of `submit`.
  std::optional<Error> check(const Submission& submission);
  /// Waits for a job's end, this client's or any other's, until its pictures and latents are here,
  /// for `timeout` at most. The first call that gets the end takes the pictures along. Errors:
  /// timeout (the job goes on), failed, out_of_memory, cancelled, not_found, lost.
  Result<JobResult> wait(std::uint64_t job, std::chrono::milliseconds timeout,
                         OnProgress on_progress = nullptr);
  /// Same as `wait`, for programs that have many jobs at once: comes back at once, and `on_end` is
  /// called exactly once, on the client's own thread. `watch` does not look for a controller that
  /// was started again: then the error is lost. A later `watch` of a job takes the earlier one's
  /// place.
  void watch(std::uint64_t job, OnProgress on_progress, OnEnd on_end);
  /// Cancels a job, which ends at the next micro-step.
  Result<std::string> cancel(std::uint64_t job);
  /// Empties places: hosts by name, actors by number. These places get no new jobs, and their
  /// actors leave when they have no job; with `now`, jobs that can go on elsewhere do so at once.
  /// Errors: not_found.
  Result<std::string> drain(const std::vector<std::string>& places, bool now = false);
  /// Returns all jobs, in as many requests as it takes.
  Result<std::vector<JobInfo>> jobs();
  Result<JobPage> jobs(const JobQuery& query);
  Result<ClusterInfo> status();
  /// The cluster's actors of users' classes (troupe/actor.h), for as long as this client lives.
  Actors actors();
  /// Ends the cluster: running jobs fail with that cause, those in a journal stay; actors stop.
  Result<std::string> stop_cluster();

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
