#include "models/image/png_text.h"

#include <zlib.h>

#include <algorithm>
#include <stdexcept>

#include "base/endian.h"
#include "base/text.h"

namespace troupe::models {
namespace {

[[noreturn]] void fail(const std::string& why) {
  throw std::runtime_error("[read_png_text] " + why);
}

[[noreturn]] void too_long() {
  fail("texts of more than " + std::to_string(kMostTextBytes >> 20U) + " MiB");
}

std::uint32_t checksum(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

std::string latin1_to_utf8(std::string_view text) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte >= 0x80) out += static_cast<char>(0xc0 | byte >> 6);
    out += byte < 0x80 ? c : static_cast<char>(0x80 | (byte & 0x3f));
  }
  return out;
}

std::string inflated(std::string_view bytes, size_t most) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) fail("zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  int status = Z_OK;
  while (status == Z_OK && out.size() <= most) {
    char buffer[16384];
    stream.next_out = reinterpret_cast<Bytef*>(buffer);
    stream.avail_out = sizeof buffer;
    status = inflate(&stream, Z_NO_FLUSH);
    out.append(buffer, sizeof buffer - stream.avail_out);
  }
  inflateEnd(&stream);
  if (out.size() > most) too_long();
  if (status != Z_STREAM_END) fail("a compressed text is damaged");
  return out;
}

// Cuts the part before the next zero byte off `rest`.
std::string_view take_field(std::string_view& rest, std::string_view type) {
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) fail(std::string(type) + " chunk without its separator");
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return field;
}

/// `most`: how many bytes text may have when it is inflated.
std::pair<std::string, std::string> parse_text(std::string_view type, std::string_view data,
                                               size_t most) {
  if (data.size() > most) too_long();
  std::string keyword = latin1_to_utf8(take_field(data, type));
  if (type == "tEXt") return {std::move(keyword), latin1_to_utf8(data)};
  if (type == "zTXt") {
    if (data.empty() || data[0] != 0) fail("zTXt chunk with an unknown compression");
    return {std::move(keyword), latin1_to_utf8(inflated(data.substr(1), most))};
  }
  if (data.size() < 2 || (data[0] != 0 && (data[0] != 1 || data[1] != 0))) {
    fail("iTXt chunk with an unknown compression");
  }
  const bool compressed = data[0] == 1;
  data.remove_prefix(2);
  take_field(data, type);  // language
  take_field(data, type);  // keyword in that language
  std::string text = compressed ? inflated(data, most) : std::string(data);
  if (!is_utf8(text)) fail("iTXt chunk \"" + keyword + "\" is not UTF-8");
  return {std::move(keyword), std::move(text)};
}

void check_keyword(const std::string& keyword) {
  const bool printable =
      std::all_of(keyword.begin(), keyword.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (keyword.empty() || keyword.size() > 79 || !printable || keyword.front() == ' ' ||
      keyword.back() == ' ' || keyword.find("  ") != std::string::npos) {
    throw std::invalid_argument("[add_png_text] \"" + keyword + "\" cannot be a keyword");
  }
}

std::string text_chunk(const std::string& keyword, const std::string& text) {
  check_keyword(keyword);
  if (text.find('\0') != std::string::npos || !is_utf8(text) || text.size() > kMostTextBytes) {
    throw std::invalid_argument("[add_png_text] the text of \"" + keyword +
                                "\" is not UTF-8, holds a zero byte or is longer than 16 MiB");
  }
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return c > 0; });
  const std::string body = ascii ? "tEXt" + keyword + '\0' + text
                                 : "iTXt" + keyword + std::string("\0\0\0\0\0", 5) + text;
  return big_endian(body.size() - 4, 4) + body + big_endian(checksum(body), 4);
}

bool is_text(const PngChunk& chunk) {
  return chunk.type == "tEXt" || chunk.type == "zTXt" || chunk.type == "iTXt";
}

}  // namespace

PngText read_png_text(std::string_view png) {
  if (!png.starts_with(kPngSignature)) fail("not a PNG file");
  PngText out;
  size_t left = kMostTextBytes;
  const bool whole = each_png_chunk(png, [&](const PngChunk& chunk) {
    if (!is_text(chunk)) return;
    if (checksum(chunk.summed) != chunk.checksum)
      fail(std::string(chunk.type) + " chunk with a wrong checksum");
    out.push_back(parse_text(chunk.type, chunk.data, left));
    const size_t own = out.back().first.size() + out.back().second.size() + chunk.type.size();
    left -= std::min(left, own);
  });
  if (!whole) fail("cut off before its end chunk");
  return out;
}

std::string unpack_png_text(std::string_view packed, std::size_t most) {
  try {
    return inflated(packed, most);
  } catch (const std::runtime_error&) {
    return "";
  }
}

PngSize read_png_size(std::string_view png) {
  if (!begins_as_png(png)) fail("no PNG header");
  return png_size(png);
}

std::string set_png_text(std::string_view png, const PngText& text) {
  if (!begins_as_png(png)) throw std::invalid_argument("[set_png_text] not a PNG file");
  std::string plain(kPngSignature);
  each_png_chunk(png, [&](const PngChunk& chunk) {
    if (!is_text(chunk))
      plain.append(big_endian(chunk.data.size(), 4))
          .append(chunk.summed)
          .append(big_endian(chunk.checksum, 4));
  });
  const std::string end = "IEND";
  return add_png_text(plain + big_endian(0, 4) + end + big_endian(checksum(end), 4), text);
}

std::string add_png_text(std::string_view png, const PngText& text) {
  if (!begins_as_png(png)) throw std::invalid_argument("[add_png_text] not a PNG file");
  std::string out(png.substr(0, kPngHeaderEnd));
  for (const auto& [keyword, value] : text) {
    out += text_chunk(keyword, value);
  }
  return out.append(png.substr(kPngHeaderEnd));
}

}  // namespace troupe::models
