#include "web/latents_npy.h"

#include <bit>
#include <cstring>
#include <regex>
#include <stdexcept>

#include "base/format.h"
#include "base/numbers.h"

namespace troupe::web {
namespace {

static_assert(std::endian::native == std::endian::little, "\"<f4\" is little-endian");

// Magic, version, length of the header: docs of numpy.lib.format.
constexpr std::size_t kMagic = 6, kVersion = 8;
constexpr std::size_t kMostHeader = 1024;
constexpr std::int64_t kMostElements = std::int64_t{1} << 28;

}  // namespace

Latents latents_from_npy(const std::string& bytes) {
  if (bytes.size() < kVersion + 4 || bytes.compare(0, kMagic, "\x93NUMPY") != 0)
    throw std::runtime_error("is no .npy file");
  const int version = static_cast<unsigned char>(bytes[kMagic]);
  if (version < 1 || version > 3) throw std::runtime_error("is a .npy file of another version");
  std::uint32_t length = 0;
  const std::size_t begin = kVersion + (version == 1 ? 2 : 4);
  std::memcpy(&length, bytes.data() + kVersion, begin - kVersion);
  if (length > kMostHeader || length > bytes.size() - begin)
    throw std::runtime_error("is a .npy file that was cut");
  const std::string header = bytes.substr(begin, length);

  std::smatch found;
  if (!std::regex_search(header, found, std::regex("'descr': *'<f4'")))
    throw std::runtime_error("is not float32");
  if (!std::regex_search(header, found, std::regex("'fortran_order': *False")))
    throw std::runtime_error("is not row-major");
  static const std::regex kShape("'shape': *\\((\\d+), *(\\d+), *(\\d+), *(\\d+),?\\)");
  if (!std::regex_search(header, found, kShape))
    throw std::runtime_error("has not the shape [n, channels, height / 8, width / 8]");
  Latents latents;
  std::int64_t elements = 1;
  for (std::size_t axis = 1; axis <= 4; ++axis) {
    const auto size = parse_number<std::int64_t>(found[axis].str());
    if (!size || *size < 1 || *size > kMostElements / elements)
      throw std::runtime_error("has a shape that is empty or too large");
    elements *= *size;
    latents.shape.push_back(*size);
  }
  const std::size_t data = static_cast<std::size_t>(elements) * sizeof(float);
  if (bytes.size() - begin - length != data)
    throw std::runtime_error(fmt::format("has {} bytes of values, its shape needs {}",
                                         bytes.size() - begin - length, data));
  latents.data.resize(static_cast<std::size_t>(elements));
  std::memcpy(latents.data.data(), bytes.data() + begin + length, data);
  if (const auto odd = first_not_finite(latents.data))
    throw std::runtime_error(fmt::format("is not finite at element {}", *odd));
  return latents;
}

}  // namespace troupe::web
