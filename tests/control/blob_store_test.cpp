#include "transport/control/blob_store.h"

#include <rapidcheck.h>

#include <fstream>

#include "base/xxh64.h"
#include "tests/support/doctest.h"
#include "transport/control/endpoint.h"

namespace troupe::control {

TEST_CASE("checksums are XXH64") {
  // Values of the reference implementation, seed 0.
  CHECK(blob_checksum("", 0) == 0xef46db3751d8e999u);
  CHECK(blob_checksum("a", 1) == 0xd24ec4f1a98c6e5bu);
  CHECK(blob_checksum("abc", 3) == 0x44bc2cf5ad770999u);
  const std::string long_text = "Nobody inspects the spammish repetition";
  CHECK(blob_checksum(long_text.data(), long_text.size()) == 0xfbcea83c8a378bf1u);
}

TEST_CASE("a checksum does not depend on the pieces") {
  const bool held = rc::check("pieces", [](const std::vector<std::string>& pieces) {
    std::string whole;
    Xxh64 hash;
    for (const auto& piece : pieces) {
      whole += piece;
      hash.update(piece.data(), piece.size());
    }
    RC_ASSERT(hash.digest() == blob_checksum(whole.data(), whole.size()));
  });
  CHECK(held);
}

TEST_CASE("a store gives back ranges, from memory and from files") {
  BlobStore store;
  const IpcFolder folder;
  const auto file = folder.path() / "weights";
  std::ofstream(file, std::ios::binary) << "0123456789";
  const BlobId memory = store.add(std::string("3456"));
  const BlobId range = store.add_file(file, 3, 4);
  for (const BlobId id : {memory, range}) {
    CHECK(id != 0);
    CHECK(store.info(id)->bytes == 4);
    CHECK(store.info(id)->checksum == blob_checksum("3456", 4));
    CHECK(*store.read(id, 0, 100) == "3456");
    CHECK(*store.read(id, 1, 2) == "45");
    CHECK(store.read(id, 4, 1)->empty());
    CHECK_FALSE(store.read(id, 5, 1));
  }
  CHECK(store.remove(memory));
  CHECK_FALSE(store.remove(memory));
  CHECK_FALSE(store.read(memory, 0, 1));
  CHECK(store.size() == 1);
  CHECK_THROWS_AS(store.add_file(file, 3, 8), std::runtime_error);
  CHECK_THROWS_AS(store.add_file(folder.path() / "none", 0, 0), std::runtime_error);
  std::filesystem::resize_file(file, 5);
  CHECK_FALSE(store.read(range, 0, 4));
}

}  // namespace troupe::control
