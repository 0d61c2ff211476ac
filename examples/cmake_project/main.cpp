// Has a running cluster (troupe start) paint a caption: paint ENDPOINT CAPTION OUTPUT.png
#include <troupe/client.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

int fail(const troupe::Error& error) {
  std::cerr << "paint: " << error.message() << '\n';
  return 1;
}

int main(int argc, char** argv) {
  const bool help = argc > 1 && std::string_view(argv[1]) == "--help";
  if (help || argc != 4 || argv[1][0] == '-') {
    (help ? std::cout : std::cerr) << "usage: paint ENDPOINT CAPTION OUTPUT.png\n";
    return help ? 0 : 2;
  }
  auto client = troupe::Client::connect(argv[1]);
  if (!client) return fail(client.error());

  troupe::Submission submission;
  submission.request.prompts = {argv[2]};
  auto job = client.value().submit(submission, [](const troupe::Progress& progress) {
    std::cerr << progress.phase << ' ' << progress.step << '/' << progress.steps << '\n';
  });
  if (!job) return fail(job.error());
  auto result = client.value().wait(job.value(), std::chrono::minutes(10));
  if (!result) return fail(result.error());

  std::ofstream file(argv[3], std::ios::binary);
  file << result.value().pictures.at(0).png;
  file.close();
  if (!file) return fail({troupe::ErrorCode::failed, std::string(argv[3]) + " cannot be written"});
}
