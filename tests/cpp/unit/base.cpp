// Digests, texts and tables that everything else stands on. The digest's loops are those of this file's own copy.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../target.h"
#include "shared.h"
#include "wire/base/digest.cpp"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/base/text.h"

namespace jaxexp::wire {
namespace {

using namespace std::string_literals;

std::vector<std::uint8_t> some_bytes(std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * i >> 3);
  return bytes;
}

bool is_same(const Loops& loops, const std::vector<std::uint8_t>& bytes, std::size_t step) {
  const XXH128_hash_t expected = XXH3_128bits(bytes.data(), bytes.size());
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  for (std::size_t at = 0; at < bytes.size(); at += step)
    loops.update(&state, bytes.data() + at, std::min(step, bytes.size() - at));
  if (!XXH128_isEqual(XXH3_128bits_digest(&state), expected)) return false;
  return bytes.size() <= XXH3_MIDSIZE_MAX || XXH128_isEqual(loops.digest(bytes.data(), bytes.size()), expected);
}

TEST_CASE("all loops of XXH3 that this processor has give the same digests") {
  for (std::size_t size = 0; size < 70000; size = size < 2100 ? size + 1 : size * 9 / 8) {
    const auto bytes = some_bytes(size);
    for (const Loops* each : {&common, &loops()})
      for (const std::size_t step : {std::size_t{1}, std::size_t{100}, std::size_t{1024}, std::size_t{1} << 17})
        if (step > 1 || size < 3000) REQUIRE_MESSAGE(is_same(*each, bytes, step), size);
  }
#if defined(__x86_64__) && defined(__GNUC__)
  CHECK((&loops() != &common) == (__builtin_cpu_supports("avx2") != 0));
#endif
}

TEST_CASE("a digest is that of xxhsum, in one part or in several, copied or not") {
  CHECK(hexadecimal(digest({})) == "99aa06d3014798d86001c324468d497f");
  const auto bytes = some_bytes(5000);
  Digester digester;
  for (std::size_t at = 0; at < bytes.size(); at += 999)
    digester.update(std::span(bytes).subspan(at, std::min<std::size_t>(999, bytes.size() - at)));
  CHECK(digester.digest() == digest(bytes));
  std::vector<std::uint8_t> copy(bytes.size());
  CHECK(copy_and_digest(copy.data(), bytes) == digest(bytes));
  CHECK(copy == bytes);
}

TEST_CASE("SHA-256 has the digests of FIPS 180-4") {
  const auto of = [](const std::string& text) {
    return hexadecimal(sha256({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  };
  CHECK(of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(of(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("a FlatMap finds what was put in, and no factor that a process draws makes it slow") {
  std::mt19937_64 random(35);
  double worst = 0;
  for (int i = 0; i < 10000; ++i) {
    FlatMap<int> map(random());
    const std::uint64_t keys = 100 + random() % 1000, distance = 4 * (1 + random() % 64),
                        first = 4 * (1 + random() % (1 << 28));
    for (std::uint64_t key = 0; key < keys; ++key) map.insert(first + distance * key).first = static_cast<int>(key);
    double steps = 0;
    for (std::uint64_t key = 0; key < keys; ++key) {
      const auto [value, is_new] = map.insert(first + distance * key);
      if (is_new || value != static_cast<int>(key) || map.contains(first + distance * key + 1)) FAIL(key);
      steps += static_cast<double>(map.steps(first + distance * key));
    }
    REQUIRE(map.size() == keys);
    worst = std::max(worst, steps / static_cast<double>(keys));
  }
  CHECK(worst < 6);  // steps for a key
  // Whose collisions no factor prevents.
  FlatMap<int> shifted(random());
  for (std::uint64_t key = 1; key < 1000; ++key) shifted.insert(key << 40);
  CHECK(shifted.size() == 999);
  CHECK(FlatMap<int>().empty());
  CHECK_FALSE(FlatMap<int>().contains(1));
}

TEST_CASE("an interner keeps an offset for each kind and text") {
  Interner interner;
  std::map<std::pair<std::uint8_t, std::string>, std::uint32_t> expected;
  for (std::uint32_t i = 1; i < 3000; ++i) {
    const auto kind = static_cast<std::uint8_t>(i % 3);
    const std::string key(i % 20, static_cast<char>('a' + i % 5));
    const auto [offset, is_new] = interner.insert(kind, key);
    CHECK(is_new == expected.try_emplace({kind, key}, i).second);
    if (is_new) offset = i;
    CHECK(offset == expected[{kind, key}]);
  }
  CHECK(expected.size() > 50);
}

TEST_CASE("UTF-8 is what Python's strict decoder takes, wherever in a text it is") {
  const auto parts = tests::texts(
      "|a|\x7F|\0|\x80|\xC2\x80|é|\xC0\x80|\xDF|\xE0\x9F\x80|名|\xED\x9F\xBF|\xED\xA0\x80|\xEF\xBF\xBF|\xF0\x8F\xBF\xBF"
      "|😀|\xF4\x8F\xBF\xBF|\xF4\x90\x80\x80|\xF5\x80\x80\x80|\xFF|\xE5\x90|\xF0\x9F\x98"s);
  std::size_t valid = 0;
  for (const std::string& part : parts)
    for (std::size_t before = 0; before < 40; ++before)
      for (const std::size_t behind : {0, 1, 2, 3, 7, 30}) {
        const std::string text = std::string(before, 'x') + part + std::string(behind, 'y');
        const bool found = is_utf8({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
        REQUIRE_MESSAGE(found == tests::is_utf8(text), text);
        valid += found;
      }
  CHECK(valid == 11 * 40 * 6);
}

TEST_CASE("texts of unknown origin are escaped as Python does it, once") {
  CHECK(escaped("plain, 名前 and 'quotes' \\") == "plain, 名前 and 'quotes' \\");
  CHECK(escaped("a\x1b[31m\n\r\t\x7F\xC2\x85") == "a\\x1b[31m\\n\\r\\t\\x7f\\x85");
  CHECK(escaped("\u202e \ufeff \u2028") == "\\u202e \\ufeff \\u2028");
  CHECK(escaped("\U000E0001\U0010FFFF\uE000") == "\\U000e0001\\U0010ffff\\ue000");
  CHECK(escaped("\xFF\xE5\x90z\xED\xA0\x80") == "\\xff\\xe5\\x90z\\xed\\xa0\\x80");
  CHECK(escaped("\0x"s) == "\\x00x");
  CHECK(escaped(escaped("\x1b\xFF")) == escaped("\x1b\xFF"));
}

TEST_CASE("messages are short") {
  CHECK(shortened("short") == "short");
  CHECK(shortened(std::string(79, 'a') + "é" + "bc") == std::string(79, 'a') + "...");
  CHECK(listed(0, [](std::size_t) { return ""s; }) == "none");
  CHECK(listed(3, [](std::size_t i) { return std::to_string(i); }) == "0, 1, 2");
  CHECK(listed(20, [](std::size_t i) { return std::to_string(i); }) == "0, 1, 2, 3, 4, 5, 6, 7, ...");
  const Path top{nullptr, "vjp"}, unnamed{&top}, tree{&unnamed, "in_tree"}, child{&tree, "children", 3};
  CHECK(child.str() == "vjp.in_tree.children[3]");
  std::vector<Path> deep(30);
  for (std::size_t i = 0; i < deep.size(); ++i)
    deep[i] = {i > 0 ? &deep[i - 1] : nullptr, "c", static_cast<std::int64_t>(i)};
  const std::string text = deep.back().str();
  CHECK(text.starts_with("c[0].c[1]"));
  CHECK(text.find("c[7]...") != text.npos);
  CHECK(text.ends_with("c[28].c[29]"));
}

TEST_CASE("bytes are written in hexadecimal, and read up to what is none") {
  const std::string bytes("\x00\x7F\xA5\xFF", 4);
  CHECK(hexadecimal(bytes) == "007fa5ff");
  CHECK(from_hexadecimal("007fa5ff") == bytes);
  CHECK(from_hexadecimal("41g442") == "A");
  CHECK(from_hexadecimal("414").size() == 1);
}

}  // namespace
}  // namespace jaxexp::wire
