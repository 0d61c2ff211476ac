#include "tests/wire/every_message.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/doctest.h"

namespace troupe::wire {

TEST_CASE("no message is missing from the list") {
  std::size_t declared = 0;
  const auto folder = std::filesystem::path(TROUPE_SOURCE_DIR) / "transport/wire";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".h") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    for (std::size_t at = 0; (at = text.str().find("kKind = Kind::", at)) != std::string::npos;
         ++at)
      ++declared;
  }
  CHECK(EveryMessage::kCount == declared);
}

TEST_CASE("every message goes there and back, cut short it is refused") {
  EveryMessage::each([]<class M>(const M& message) {
    const std::string bytes = encode(message);
    CHECK(encode(decode<M>(as_bytes(bytes))) == bytes);
    const std::string frame = encode_frame({}, message);
    CHECK(decode_header(as_bytes(frame)).kind == M::kKind);
    if (bytes.empty()) return;
    CHECK_THROWS_AS(decode<M>(as_bytes(bytes).first(bytes.size() - 1)), WireError);
  });
}

}  // namespace troupe::wire
