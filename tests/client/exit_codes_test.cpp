#include <algorithm>
#include <regex>

#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

using namespace troupe::testing;

namespace {

const std::string kTiny = TROUPE_SOURCE_DIR "/tests/fixtures/tiny-pixart";
const std::string kUnet = TROUPE_SOURCE_DIR "/tests/fixtures/tiny-sd15";

struct Case {
  const char* what;
  const char* words;  // of the message
};

void check(const std::string& verb, const std::vector<Case>& cases, int exit_code) {
  for (const Case& one : cases) {
    const auto result = troupe::testing::troupe(verb + " " + one.what);
    INFO("troupe " << verb << " " << std::string(one.what) << ": " << result.err);
    CHECK(result.exit_code == exit_code);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(result.err.find(one.words) != std::string::npos);
    CHECK_FALSE(std::regex_search(result.err, std::regex("[.][0-9]*0000")));  // 0.500000
    CHECK((result.err.find("(see troupe ") != std::string::npos) == (exit_code == 2));
  }
}

}  // namespace

TEST_CASE("usage, exit code 2: what is wrong with any model and any cluster") {
  check(
      "run --model " + kTiny + " --prompt x",
      {{"--n 0", "--n: 0 is out of bounds"},
       {"--n 4097", "4097 is out of bounds: a whole number from 1 to 4096"},
       {"--height 0", "--height: 0"},
       {"--height 16385", "from 1 to 16384"},
       {"--height 32.5", "32.5 is not a whole number"},
       {"--width -16", "--width: -16"},
       {"--frames 0", "--frames: 0"},
       {"--steps 0", "--steps: 0"},
       {"--steps 3.5", "3.5 is not a whole number"},
       {"--guidance much", "\"much\" is not a number"},
       {"--guidance nan", "--guidance: \"nan\" is not a number"},
       {"--guidance inf", "\"inf\" is not a number"},
       {"--guidance -1", "-1 is out of bounds: a number from 0 to 1"},
       {"--guidance 10001", "10001 is out of bounds"},
       {"--seed -1", "--seed: \"-1\" is not a whole number from 0 to 2^64 - 1"},
       {"--seed 1.5", "\"1.5\""},
       {"--sampler eular", "did you mean euler?"},
       {"--dtype int8", "\"int8\" is not float32, bfloat16 or float16"},
       {"--dtype FP16", "is not float32, bfloat16 or float16; did you mean fp16?"},
       {"--weight-dtype int4", "\"int4\" is not int8 or fp8"},
       {"--weight-dtype INT8", "\"INT8\" is not int8 or fp8; did you mean int8?"},
       {"--weight-dtype float32", "is not int8 or fp8; left out, weights are kept as --dtype says"},
       {"--noise-dtype float64", "\"float64\" is not float32 or model"},
       {"--max-sequence-length 0", "--max-sequence-length: 0"},
       {"--max-sequence-length 5000", "4096"},
       {"--init-latents ''", "--init-latents: is empty"},
       {"--init-image ''", "--init-image: is empty"},
       {"--init-image a.png --init-latents b.safetensors",
        "--init-image and --init-latents do not go together"},
       {"--strength 0.5", "--strength needs --init-image"},
       {"--mask a.png", "--mask needs --init-image"},
       {"--mask '' --init-image a.png", "--mask: is empty"},
       {"--strength 0.8", "--strength needs --init-image"},
       {"--strength 1.5 --init-image a.png", "1.5 is out of bounds: a number above 0, up to 1,"},
       {"--strength 0 --init-image a.png", "0 is out of bounds"},
       {"--guidance-rescale 2", "2 is out of bounds: a number from 0 to 1"},
       {"--guidance-rescale nan", "\"nan\" is not a number"},
       {"--prompt \"$(printf 'caf\\351')\"", "--prompt number 2 is not UTF-8 text"},
       {"--negative-prompt \"$(printf '\\377')\"", "--negative-prompt is not UTF-8 text"},
       {"--seed 1 --seed 2", "--seed has 2 values, but there is 1 picture (prompts × --n)"},
       {"--negative-prompt a --negative-prompt b --n 3",
        "--negative-prompt has 2 texts, but there is 1 prompt and 3 pictures"},
       {"--eta 1.5", "1.5 is out of bounds: a number from 0 to 1"},
       {"--timesteps 900,x", "--timesteps: \"x\" is not a number"},
       {"--timesteps 900,5 --sigmas 1,0", "--timesteps and --sigmas do not go together"},
       {"--timesteps 900,5 --steps 2", "--steps does not go with --timesteps or --sigmas"},
       {"--output-type jpeg", "is not picture or latent"},
       {"--output-type picture --output o.safetensors",
        "--output-type picture does not go with --output o.safetensors"},
       {"--output-type latent --output o.png",
        "--output-type latent does not go with --output o.png: latents are written as "
        ".safetensors"},
       {"--output o.safetensors --save-latents l.safetensors",
        "--save-latents does not go with --output o.safetensors"},
       {"--output o.safetensors --fps 3", "--fps does not go with --output o.safetensors"},
       {"--prompt-embeds e.safetensors", "--prompt and --prompt-embeds do not go together"},
       {"--prompt-embeds ''", "--prompt-embeds: is empty"},
       {"--lora ''", "--lora: is empty"},
       {"--lora F:2000", "the scale is not a number from -1000 to 1000"},
       {"--lora F:nan", "the scale is not a number from -1000 to 1000"},
       {"--lora /etc/passwd:abc", "the scale is no number after the colon, as in /etc/passwd:0.8"},
       {"--lora /etc/passwd:", "there is no scale after the colon"},
       {"--embedding ''", "--embedding: is empty"},
       {"--embedding a.safetensors:", "there is no word after the colon"}},
      2);
  check(
      "run --model " + kTiny + " --prompt x",
      {{"--method magic", "is not exact, pipefusion or distrifusion"},
       {"--method exact --patches 4",
        "--patches is 4, but --method is exact: only pipefusion and distrifusion have"},
       {"--kv predict",
        "--kv is predict, but --method is exact: only pipefusion and distrifusion have"},
       {"--kv fresh", "is not stale or predict"},
       {"--group-norm none", "is not corrected, stale, synchronous or separate"},
       {"--exchange some", "is not stale, none, all or naive"},
       {"--patches 0", "--patches: 0"},
       {"--warmup -1", "--warmup: -1"},
       {"--refill-steps 1,x", "--refill-steps: \"x\" is not a number"},
       {"--step-cache fb", "is not first-block or teacache"},
       {"--step-cache-threshold 0.1", "--step-cache-threshold needs --step-cache"},
       {"--step-cache first-block --step-cache-threshold 0", "above 0, up to 10"},
       {"--step-cache first-block --step-cache-threshold nan", "is not a number"},
       {"--dp 0", "--dp: 0"},
       {"--dp 1025", "from 1 to 1024"},
       {"--cfg 3", "from 1 to 2"},
       {"--cfg 2 --guidance 0", "--cfg is 2, but --guidance is 0"},
       {"--pp 2,2", "\"2,2\" is not a number"},
       {"--pp two", "\"two\" is not a number"},
       {"--ulysses 0", "--ulysses: 0"},
       {"--stages 0", "--stages: 0"},
       {"--stages 2,3", "--stages lists 2 stages, but --pp is 1"},
       {"--pp 2 --stages 5", "--stages lists 1 stage, but --pp is 2"},
       {"--parallel yes", "--parallel: \"yes\" is not auto"},
       {"--parallel auto --pp 2", "--pp is 2, but --parallel is auto, which picks the degrees"},
       {"--actors 3", "--actors goes with --parallel auto"},
       {"--device gpu", "is not cpu or cuda"},
       {"--pin NUMA", "\"NUMA\" is not none or numa; did you mean numa?"},
       {"--cuda-graphs 1", "\"1\" is not on or off"},
       {"--cuda-graphs on", "--cuda-graphs on goes with --device cuda"},
       {"--actors-per-gpu 2", "--actors-per-gpu goes with --device cuda"},
       {"--device cuda --actors-per-gpu 0", "--actors-per-gpu: 0"},
       {"--warmup 30 --patches 2 --steps 20", "--warmup is 30, but --steps is 20"},
       {"--patches 2 --warmup 5 --steps 2", "--warmup is 5, but --steps is 2"},
       {"--refill-steps 3", "--refill-steps needs --method pipefusion or distrifusion"},
       {"--refill-steps 3,29 --patches 2 --steps 20", "--refill-steps has 29, but --steps is 20"},
       {"--group-norm stale", "--group-norm is stale, but --method is exact, which has no patches"},
       {"--exchange none", "--exchange is none, but --method is exact, which has no patches"},
       {"--patches 2 --method distrifusion --exchange none --group-norm synchronous",
        "--exchange is none, but --group-norm is synchronous"},
       {"--vae-parallel 3", "--vae-parallel is 3, but the degrees give a picture 1 actor"},
       {"--cfg 2 --vae-parallel 3", "--vae-parallel is 3, but the degrees give a picture 2 actors"},
       {"--dp 2", "--dp is 2, but there is only 1 picture to split"},
       {"--pp 32 --tp 33",
        "--tp is 33: the degrees need 1056 actors, and no cluster has more than 1024"},
       {"--n 4096 --prompt y", "prompts × --n is 8192 pictures: at most 4096"},
       {"--prompt $(head -c 16385 /dev/zero | tr '\\0' a)",
        "--prompt number 2 has 16385 bytes: at most 16384 are taken"},
       {"--negative-prompt $(head -c 20000 /dev/zero | tr '\\0' a)",
        "--negative-prompt has 20000 bytes: at most 16384"},
       {"--clean-caption --prompt $(head -c 5000 /dev/zero | tr '\\0' a)",
        "--prompt number 2 has 5000 bytes: with --clean-caption at most 4096"},
       {"$(for i in $(seq 17); do echo --prompt $(head -c 16000 /dev/zero | tr '\\0' a); done)",
        "all prompts have 272001 bytes: at most 262144"},
       {"--threads-per-actor 0", "--threads-per-actor: 0"},
       {"--keep-logs ''", "--keep-logs: is empty"},
       {"--output ''", "names no file"},
       {"--output o.jpg", "only .png is written"},
       {"--fps 0", "--fps: 0"},
       {"--fps 8 --output /tmp/", "--fps does not go with --output /tmp/"},
       {"--save-latents l.pt", "only .safetensors is written"},
       {"--save-latents ''", "--save-latents: is empty"},
       {"--preview ''", "--preview: is empty"},
       {"--preview-every 2", "--preview-every needs --preview"},
       {"--timeout 0", "a number from 0.001 to 1000000000"},
       {"--timeout nan", "--timeout: \"nan\" is not a number"},
       {"--num_inference_steps 4", "unknown option --num_inference_steps: here it is --steps"},
       {"--use_fbcache", "unknown option --use_fbcache: here it is --step-cache first-block"},
       {"--split_scheme row",
        "unknown option --split_scheme: patches are always runs of token rows; leave it out"},
       {"--guidance-scale 4", "here it is --guidance"},
       {"-y y", "unknown option -y (see"},
       {"stray", "unexpected argument \"stray\""}},
      2);
  check("submit --prompt x",
        {{"--priority 200", "from -100 to 100"},
         {"--detach --fps 8", "--fps does not go with --detach"},
         {"--detach --timeout 5", "--timeout does not go with --detach"},
         {"--detach --output o.png", "--output does not go with --detach"},
         {"--connect 127.0.0.1:99999", "port \"99999\" is not a number from 0 to 65535"},
         {"--connect ipc://relative", "ipc needs an absolute path"},
         {"--connect ''", "--connect: is empty"},
         {"--share ''", "--share: is empty"},
         {"--connect http://x", "--connect \"http://x\": neither ipc://PATH nor tcp://HOST"}},
        2);
  check(
      "plan --model " + kTiny,
      {{"--parallel auto", "needs --actors here, or --simulate"},
       {"--simulate foo", "--simulate: "},
       {"--simulate ''", "--simulate: is empty"},
       {"--simulate L40x8", "; did you mean l40x8?"},
       {"--simulate h100", "; did you mean h100-nvlink?"},
       {"--simulate l40x0", "a number of devices outside 1 to 1024"},
       {"--simulate l40x2 --actors 4", "--simulate l40x2 has 2 devices: too few for 4 actors"},
       {"--simulate t4 --cfg 2 --pp 3", "t4 has 4 devices: too few for 6 actors; --simulate t4x6"},
       {"--actors 1 --pp 2", "the degrees need 2 actors, --actors is 1"},
       {"--actors 0", "--actors: 0"},
       {"--memory-limit 0", "--memory-limit: 0"},
       {"--memory-limit nan", "--memory-limit: \"nan\" is not a number"}},
      2);
  check("start",
        {{"--actors -1", "--actors: -1"},
         {"--actors 2000", "2000 is out of bounds: a whole number from 0 to 1024"},
         {"--listen 127.0.0.1:x", "--listen tcp://127.0.0.1:x: port \"x\" is not a number"},
         {"--listen nowhere", "--listen \"nowhere\": neither ipc://PATH"},
         {"--tensor-host nowhere", "\"nowhere\" is not an address in numbers"},
         {"--metrics-port 70000", "from 0 to 65535"},
         {"--listen tcp://127.0.0.1:7400 --metrics-port 7400",
          "--metrics-port 7400 is the cluster's"},
         {"--listen 127.0.0.1:7400 --metrics-port 7401", "takes 7400 and, for blobs, 7401"},
         {"--respawns -2", "--respawns: -2"},
         {"--task-deadline 0", "--task-deadline: 0"},
         {"--jobs-together 65", "from 1 to 64"},
         {"--journal ''", "--journal: is empty"},
         {"--journal-salvage", "--journal-salvage goes with --journal only"},
         {"--plugin ''", "--plugin: is empty"},
         {"--cuda-graphs on", "--cuda-graphs on goes with --device cuda"},
         {"--actors-per-gpu 2", "--actors-per-gpu goes with --device cuda"},
         {"--device cuda --actors-per-gpu 65", "from 1 to 64"},
         {"--log x", "--log goes with --detach only"}},
        2);
  check("join",
        {{"--actors 0", "--actors: 0"},
         {"--name 3", "\"3\" is not a name"},
         {"--name ''", "is not a name"},
         {"--tensor-host localhost", "is not an address in numbers"},
         {"--wait -1", "--wait: -1"},
         {"--wait 0.5", "0.5 is not a whole number"},
         {"--drain-deadline x", "\"x\" is not a number"},
         {"--cuda-graphs on --device cpu", "--cuda-graphs on goes with --device cuda"},
         {"--actors-per-gpu 2", "--actors-per-gpu goes with --device cuda"},
         {"--actors-per-gpu x", "\"x\" is not a number"},
         {"--connect 127.0.0.1:abc", "port \"abc\""}},
        2);
  check("",
        {{"wait 0", "ID is a number from 1"},
         {"cancel 1.5", "ID is a number from 1"},
         {"timeline 0", "ID is a number from 1"},
         {"timeline 1 -o ''", "--output: is empty"},
         {"logs --lines 0", "--lines: 0"},
         {"logs --follow --bogus", "unknown option --bogus"},
         {"drain", "drain needs a HOST or an ACTOR"},
         {"drain 0 --wait -1", "--wait: -1"},
         {"keys frob --keys k", "make, add, role, list or remove"},
         {"keys add bob --keys k --public abc", "--public is no key: one has 40 characters"},
         {"jobs 1.5", "ID is a number from 1"},
         {"stat", "did you mean status?"},
         {"version", "did you mean --version?"},
         {"help nothing", "unknown command nothing"},
         {"repl --connect nowhere", "--connect \"nowhere\": neither ipc://PATH"},
         {"repl nowhere", "ENDPOINT \"nowhere\": neither ipc://PATH"}},
        2);
}

TEST_CASE("failed, exit code 1: what only the model, the machine or the cluster can refuse") {
  check("run --model " + kTiny + " --prompt x",
        {{"--height 100", "--height is 100: this model takes multiples of 16"},
         {"--pp 6", "5 blocks"},
         {"--stages 1", "--stages add up to 1 block, but the transformer has 5"},
         {"--steps 2000", "trained with 1000"},
         {"--frames 5", "makes pictures"},
         {"--fps 8", "--fps is for videos"},
         {"--output o.mp4", "--output o.mp4 is for videos: "},
         {"--guidance-rescale 0.5", "--guidance-rescale is 0.5, but"},
         {"--patches 2 --group-norm stale", "group norm"},
         {"--sampler KarrasVeScheduler", "KarrasVeScheduler"},
         {"--lora nothere", "troupe: --lora /"},
         {"--lora nothere", "nothere: no such file"},
         {"--lora nothere:abc", "nothere:abc"},
         {"--embedding nothere.pt", "troupe: --embedding /"},
         {"--embedding nothere.pt", "takes no textual inversions"},
         {"--init-image /dev/null", "troupe: --init-image /dev/null"},
         {"--init-image nothere.png", "troupe: --init-image nothere.png: "},
         {"--init-latents nothere.safetensors", "troupe: --init-latents nothere.safetensors: "},
         {"--output /nonexistent/o.png", "no folder /nonexistent"},
         {"--keep-logs /nonexistent/a/b", "--keep-logs"},
         {"--weight-dtype fp8", "fp8 needs a GPU of compute capability 8.9, and --device cpu has"},
         {"--weight-dtype int8 --device cuda", "int8 is for actors on the CPU, and --device cuda"}},
        1);
  check("run --model " + kUnet + " --prompt x",
        {{"--stages 1", "--stages are given, but this model is a U-Net"},
         {"--pp 2", "--pp is 2, but this model is a U-Net"}},
        1);
  check(
      "plan --model " + kTiny,
      {{"--memory-limit 1e-6", "and by --memory-limit an actor may hold 1 kB: no pp, tp or"},
       {"--memory-limit 1e-6", "on up to 8 actors (--actors says how many there are) is enough"},
       {"--memory-limit 1e-6 --actors 2", "and no mix of degrees on 2 actors is enough"},
       {"--memory-limit 1e-6 --simulate l40x3", "and no mix of degrees on 3 actors is enough"},
       {"--weight-dtype fp8 --explain", "fp8 needs a GPU of compute capability 8.9, and this host"},
       {"--weight-dtype fp8 --simulate t4", "and t4 has none"},
       {"--weight-dtype int8 --simulate l40x2", "int8 is for actors on the CPU, and l40"}},
      1);
  for (const char* verb : {"run --prompt x", "plan", "start"})
    check(verb,
          {{"--model /nothere", "troupe: --model /nothere"},
           {"--model some-org/a-model", "hf download some-org/a-model --include"}},
          1);
  const std::string tcp = "start --listen tcp://127.0.0.1:";
  check("start",
        {{"--plugin nothere.so", "troupe: --plugin /"},
         {"--listen tcp://127.0.0.1:0 --plugin /dev/null", "troupe: --plugin /dev/null: there is"},
         {"--journal /dev/null/x", "troupe: --journal /dev/null/x: cannot be made"},
         {"--journal /dev/null", "troupe: --journal /dev/null: is not a folder"}},
        1);
  check(tcp + "65535", {{"", "troupe: --listen tcp://127.0.0.1:65535: the port after it"}}, 1);
  check(tcp + "0",
        {{"--keys /nothere", "troupe: --keys /nothere/clients: is not there"},
         {"--allow-models /nothere", "troupe: --allow-models /nothere: cannot be allowed"}},
        1);
  check(tcp + "0", {{"--keys none", "is started with --insecure"}}, 2);
  for (const char* verb : {"status", "join --wait 0", "repl"})
    check(verb,
          {{"--connect 127.0.0.1:9 --keys /nothere", "troupe: --keys /nothere/server.pub: is not"}},
          1);
  check("keys", {{"--keys /proc/nothere", "troupe: --keys /proc/nothere: cannot be made"}}, 1);
  check("submit --prompt x --connect ipc:///tmp/troupe-none/control.sock",
        {{"--fps 8", "no controller"}}, 1);
  const Scratch scratch;
  scratch.file("empty.png", "");
  check("run --model " + kTiny + " --prompt x",
        {{("--init-image " + scratch / "empty.png").c_str(), "empty.png: is empty"}}, 1);
}
