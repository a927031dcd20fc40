// The loop of the UTF-8 check.
#include "wire/base/text.h"

namespace jaxexp::wire {

bool is_long_utf8(std::span<const std::uint8_t> text) {
  const std::uint8_t* p = text.data();
  const std::uint8_t* const end = p + text.size();
  while (p < end) {
    if (end - p >= 8 && (load<std::uint64_t>(p) & 0x8080808080808080u) == 0) {
      p += 8;
      continue;
    }
    const std::uint8_t lead = *p++;
    if (lead < 0x80) continue;
    const int more = lead >= 0xC2 && lead <= 0xDF   ? 1
                     : (lead & 0xF0) == 0xE0        ? 2
                     : lead >= 0xF0 && lead <= 0xF4 ? 3
                                                    : 0;
    if (more == 0 || end - p < more) return false;
    const std::uint8_t lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const std::uint8_t highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (*p < lowest || *p > highest) return false;
    for (int i = 1; i < more; ++i)
      if ((p[i] & 0xC0) != 0x80) return false;
    p += more;
  }
  return true;
}

}  // namespace jaxexp::wire
