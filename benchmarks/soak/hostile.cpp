#include "benchmarks/soak/hostile.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "benchmarks/demo_jobs.h"

namespace troupe::soak {
namespace {

using namespace std::chrono_literals;

class Hostile {
 public:
  Hostile(const SoakCluster& cluster, Counts& counts, Faults& faults, unsigned seed)
      : cluster_(cluster),
        counts_(counts),
        faults_(faults),
        random_(seed),
        port_(static_cast<int>(
            std::stoul(cluster.endpoint().substr(cluster.endpoint().rfind(':') + 1)))) {}

  void act() {
    ++counts_.hostile_acts;
    const auto dice = random_() % 100;
    if (dice < 35) return noise();
    if (dice < 55) return silence();
    if (dice < 85) return bad_request();
    if (dice < 95) return flood();
    starve();
  }

 private:
  /// A connection to the control plane or to the blobs' channel, which takes the next port.
  int connection() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) return -1;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port_ + static_cast<int>(random_() % 2)));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
        errno != EINPROGRESS) {
      ::close(socket);
      return -1;
    }
    return socket;
  }

  std::string random_bytes(std::size_t count) {
    std::string bytes(count, 0);
    for (char& c : bytes)
      c = static_cast<char>(random_());
    return bytes;
  }

  static void say(int socket, const std::string& bytes) {
    pollfd ready{socket, POLLOUT, 0};
    if (poll(&ready, 1, 500) > 0)
      (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  /// Bytes that are no ZeroMQ, or begin as its greeting and NULL handshake do and then are none.
  void noise() {
    const int socket = connection();
    if (socket < 0) return;
    std::string bytes;
    if (random_() % 2 == 0) {
      bytes = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
      bytes.resize(64);
    }
    say(socket, bytes + random_bytes(1 + random_() % 20'000));
    std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 300));
    ::close(socket);
  }

  void silence() {
    std::vector<int> sockets;
    for (auto many = 1 + random_() % 30; many > 0; --many)
      sockets.push_back(connection());
    std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 5000));
    for (const int socket : sockets)
      if (socket >= 0) ::close(socket);
  }

  void bad_request() {
    auto client = Client::connect(cluster_.endpoint(), 5s);
    if (!client) return;  // a controller is being started again
    auto job = bench::picture_job(128, 4, 4.5, 1, 1, {});
    auto& request = job.request;
    switch (random_() % 8) {
      case 0:
        request.height = -128;
        break;
      case 1:
        request.width = 1 << 30;
        break;
      case 2:
        request.steps = 2'000'000'000;
        break;
      case 3:
        request.prompts = {std::string(100'000, 'a')};
        break;
      case 4:
        job.model = "/nowhere/" + std::to_string(random_());
        break;
      case 5:
        job.parallelism.pp = 4096;
        break;
      case 6:
        request.init_image = random_bytes(5000);
        break;
      default:
        request.images_per_prompt = 100'000;
    }
    const auto taken = client.value().submit(job);
    if (taken) {
      faults_.note("job " + std::to_string(taken.value()) + " was taken in, and is nonsense");
      (void)client.value().cancel(taken.value());
    } else if (taken.error().what.empty()) {
      faults_.note("nonsense was refused without a reason");
    } else {
      ++counts_.refused;
    }
    (void)client.value().cancel(1'000'000'000 + random_());
  }

  /// Submits 20 jobs, and cancels at once those that are taken.
  void flood() {
    auto client = Client::connect(cluster_.endpoint(), 5s);
    if (!client) return;
    std::vector<std::uint64_t> jobs;
    for (int i = 0; i < 20; ++i) {
      if (const auto job = client.value().submit(bench::picture_job(128, 400, 4.5, 1, i, {})))
        jobs.push_back(job.value());
    }
    for (const auto job : jobs)
      (void)client.value().cancel(job);
  }

  void starve() {
    const auto controller = cluster_.controller();
    std::vector<int> sockets;
    for (int i = 0; i < cluster_.descriptors() * 3 / 2; ++i)
      sockets.push_back(connection());
    std::this_thread::sleep_for(2s);
    for (const int socket : sockets)
      if (socket >= 0) ::close(socket);
    ++counts_.starvations;
    for (const auto end = Clock::now() + 30s;; std::this_thread::sleep_for(100ms)) {
      if (cluster_.controller() != controller) return;  // somebody else struck it meanwhile
      if (Client::connect(cluster_.endpoint(), 2s)) return;
      if (Clock::now() < end) continue;
      return faults_.note(::kill(controller, 0) == 0
                              ? "30 s after a starvation the controller does not answer"
                              : "the controller ended while its descriptors were starved");
    }
  }

  const SoakCluster& cluster_;
  Counts& counts_;
  Faults& faults_;
  std::mt19937 random_;
  int port_;
};

}  // namespace

void harass(const SoakCluster& cluster, Counts& counts, Faults& faults, Clock::time_point end,
            unsigned seed) {
  Hostile hostile(cluster, counts, faults, seed);
  std::mt19937 random(seed + 1);
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + random() % 1500));
    hostile.act();
  }
}

}  // namespace troupe::soak
