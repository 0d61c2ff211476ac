#include "web/base64.h"

#include <sodium.h>

namespace troupe::web {

std::string base64(std::string_view bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  text.pop_back();  // the terminating zero
  return text;
}

std::string hex(std::string_view bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                 bytes.size());
  text.pop_back();  // the terminating zero
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kMark = ";base64,";
  if (text.starts_with("data:")) {
    const std::size_t mark = text.substr(0, 256).find(kMark);
    if (mark == text.npos) return std::nullopt;
    text.remove_prefix(mark + kMark.size());
  }
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  std::size_t size = 0;
  const char* end = nullptr;
  for (const int variant :
       {sodium_base64_VARIANT_ORIGINAL, sodium_base64_VARIANT_ORIGINAL_NO_PADDING}) {
    if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                          text.size(), " \r\n", &size, &end, variant) != 0 ||
        end != text.data() + text.size())
      continue;
    bytes.resize(size);
    return bytes;
  }
  return std::nullopt;
}

}  // namespace troupe::web
