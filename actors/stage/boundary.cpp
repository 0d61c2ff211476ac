#include "actors/stage/boundary.h"

#include <ATen/ATen.h>

#include <cstring>
#include <stdexcept>

namespace troupe::actors {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error("[boundary] " + what);
}

at::Tensor fetch_piece(const wire::BoundaryPiece& piece, const BoundaryShape& shape,
                       std::int64_t rows,
                       const std::function<control::BlobResult(const wire::BlobRef&)>& fetch) {
  const auto& ref = piece.blob;
  const bool fits = ref.shape.size() == 5 && ref.shape[0] >= 1 &&
                    ref.shape[1] == piece.last_image - piece.first_image &&
                    ref.shape[2] == shape.channels && ref.shape[3] == rows * shape.patch_size &&
                    ref.shape[4] == shape.latent_width;
  if (!fits) refuse("a piece has another shape than its rows and pictures ask for");
  const auto blob = fetch(ref);
  if (!blob) refuse("a piece did not arrive: " + blob.failure.what);
  auto tensor = at::empty(ref.shape, at::kFloat);
  if (blob.bytes->size() != tensor.nbytes()) {
    refuse("a piece has " + std::to_string(blob.bytes->size()) + " bytes, " +
           std::to_string(tensor.nbytes()) + " are needed");
  }
  std::memcpy(tensor.mutable_data_ptr(), blob.bytes->data(), blob.bytes->size());
  return tensor;
}

}  // namespace

at::Tensor assemble_boundary(
    const wire::BeginJob& begin, const BoundaryShape& shape,
    const std::function<control::BlobResult(const wire::BlobRef&)>& fetch) {
  const std::int64_t pictures = begin.last_image - begin.first_image;
  at::Tensor whole;
  std::int64_t covered = 0;
  for (const auto& piece : begin.boundary) {
    std::int64_t rows = 0;
    for (const auto& run : piece.rows)
      rows += run.end - run.begin;
    const auto part = fetch_piece(piece, shape, rows, fetch);
    if (!whole.defined()) {
      whole = at::empty(
          {part.size(0), pictures, shape.channels, shape.latent_height, shape.latent_width},
          at::kFloat);
    }
    if (whole.size(0) != part.size(0)) refuse("its pieces have histories of different lengths");
    const auto first = std::max(begin.first_image, piece.first_image);
    const auto last = std::min(begin.last_image, piece.last_image);
    const auto from = part.slice(1, first - piece.first_image, last - piece.first_image);
    const auto into = whole.slice(1, first - begin.first_image, last - begin.first_image);
    std::int64_t offset = 0;
    for (const auto& run : piece.rows) {
      const auto count = (run.end - run.begin) * shape.patch_size;
      into.slice(3, run.begin * shape.patch_size, run.end * shape.patch_size)
          .copy_(from.slice(3, offset, offset + count));
      offset += count;
    }
    covered += (last - first) * offset;
  }
  if (covered != pictures * shape.latent_height) refuse("its pieces do not cover the pictures");
  return whole;
}

}  // namespace troupe::actors
