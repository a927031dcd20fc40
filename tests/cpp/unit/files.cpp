// What other programs' files and messages say: NumPy's arrays, small floats, protocol buffers, shardings.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <string>

#include "runtime/command/small_float.h"
#include "runtime/npy/npy.h"
#include "runtime/plugin/hlo_shardings.h"
#include "runtime/signature/tiling.h"
#include "shared.h"
#include "wire/base/protobuf.h"
#include "wire/base/text.h"
#include "wire/exported/op_sharding.h"

namespace jaxexp {
namespace {

using tests::Bytes;
using tests::bytes_of;
using tests::refused;
using wire::hexadecimal;
using namespace std::string_literals;

TEST_CASE(
    "small floats: each code is a number that has this code, and others are rounded to the nearest, ties to even") {
  for (const char* dtype :
       {"float16", "bfloat16", "float8_e5m2", "float8_e4m3", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz",
        "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"}) {
    const auto* const format = command::small_float(dtype);
    REQUIRE(format);
    const bool has_sign = format->special != command::SmallFloat::Special::powers;
    const unsigned codes = 1u << (format->exponent_bits + format->fraction_bits + has_sign);
    for (unsigned code = 0; code < codes; ++code) {
      const double number = format->decoded(code);
      if (std::isnan(number)) continue;
      if (format->encoded(number) != code) FAIL(dtype, " ", code);
      const double next = code + 1 < codes ? format->decoded(code + 1) : NAN;
      if (std::isfinite(next) && next > number && has_sign) {
        CHECK(format->encoded(number + (next - number) * 0.49) == code);
        CHECK(format->encoded(number + (next - number) * 0.51) == code + 1);
        CHECK(format->encoded((number + next) / 2) == code + code % 2);
      }
    }
  }
  CHECK(command::small_float("float16")->decoded(0x3C00) == 1);
  CHECK(command::small_float("float16")->decoded(0x0001) == std::ldexp(1, -24));
  CHECK(command::small_float("float16")->encoded(70000) == 0x7C00);
  CHECK(command::small_float("bfloat16")->encoded(-1.5) == 0xBFC0);
  CHECK(command::small_float("float8_e4m3fn")->encoded(1e9) == 0x7F);
  CHECK(command::small_float("float8_e4m3fnuz")->encoded(-0.0) == 0);
  CHECK(command::small_float("float4_e2m1fn")->encoded(100) == 7);
  CHECK(command::small_float("float8_e8m0fnu")->decoded(127) == 1);
  CHECK(command::small_float("float16")->bytes() == 2);
  CHECK(command::small_float("float8_e5m2")->bytes() == 1);
  CHECK_FALSE(command::small_float("float32"));
}

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string text = "\x93NUMPY"s + version + '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) text += static_cast<char>(header.size() >> 8 * i);
  return text + header + data;
}

std::string wrong_npy(const std::string& file) {
  try {
    npy::read_npy(bytes_of(file));
  } catch (const npy::NpyError& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("arrays of NumPy are read in both orders, and what does not fit is refused") {
  const std::string data("\1\0\2\0\3\0\4\0\5\0\6\0", 12);
  const std::string file = npy("{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }\n", data);
  const npy::Item item = npy::read_npy(bytes_of(file));
  CHECK(item.dtype == "int16");
  CHECK(item.item_bytes == 2);
  CHECK(item.shape == std::vector<std::int64_t>{2, 3});
  CHECK(item.is_fortran_order);
  CHECK(npy::row_major(item) == Bytes{1, 0, 3, 0, 5, 0, 2, 0, 4, 0, 6, 0});
  CHECK(wrong_npy(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "abcd", 2)).empty());
  CHECK(wrong_npy(npy("{'descr': '<V1', 'fortran_order': False, 'shape': (4,), }", "abcd")).empty());
  for (const std::string& wrong :
       {""s, "\x93NUMPY"s, "not NumPy's"s, npy("{'descr': '<i2', 'fortran_order': False, 'shape': (7,), }", data),
        npy("{'descr': '>i2', 'fortran_order': False, 'shape': (6,), }", data),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", data),
        npy("{'descr': '<i2', 'fortran_order': False, 'shape': (-1,), }", data),
        npy("{'descr': '<i2', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", data),
        npy("{'descr': '<i2'}", data), npy("", data)})
    CHECK_FALSE_MESSAGE(wrong_npy(wrong).empty(), wrong);
}

TEST_CASE("what is written for NumPy is read again") {
  const std::string head = npy::npy_head("float32", 4, {1, 2});
  CHECK(head.size() % 64 == 0);
  const std::string whole = npy::npz({{"a", head + "12345678"}, {"b/c", npy::npy_head("bfloat16", 2, {}) + "ab"}});
  const auto items = npy::read_npz(bytes_of(whole));
  REQUIRE(items.size() == 2);
  CHECK((items[0].first == "a" && items[0].second.dtype == "float32" && items[0].second.data.size() == 8));
  CHECK((items[1].first == "b/c" && items[1].second.dtype.empty() && items[1].second.item_bytes == 2));
  CHECK(npy::has_name("int8"));
  CHECK_FALSE(npy::has_name("bfloat16"));
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK_THROWS_AS(npy::read_npz(bytes_of(std::string_view(whole).substr(0, size))), npy::NpyError);
}

TEST_CASE("protocol buffers are read field by field, or not at all") {
  using namespace wire::protobuf;
  const std::string message = "\x08\x96\x01\x12\x03"s + "abc" + "\x1D" + "1234" + "\x21" + "12345678";
  const auto all = fields(message);
  REQUIRE((all && all->size() == 4));
  CHECK((all->at(0).number == 1 && all->at(0).value == 150));
  CHECK((all->at(1).number == 2 && all->at(1).bytes == "abc"));
  CHECK((all->at(2).type == Field::four_bytes && all->at(3).bytes == "12345678"));
  CHECK(fields("")->empty());
  for (const std::string& text :
       {"\x08"s, "\x08\x80"s, "\x12\x04"s + "abc", "\x1D"s + "123", "\x0B"s, std::string(11, '\xFF')})
    CHECK_FALSE(fields(text));
}

TEST_CASE("an xla.OpSharding is one of all devices, and divides arrays in tiles") {
  const auto read = [](const Bytes& proto, std::uint32_t devices) {
    return refused([&] { wire::read_op_sharding(proto, devices, {}); });
  };
  const Bytes tiled{8, 3, 0x1A, 2, 2, 4, 0x4A, 1, 8, 0x52, 1, 0};  // 2 times 4 devices, in order
  CHECK(read(tiled, 8).empty());
  CHECK_FALSE(read(tiled, 7).empty());
  CHECK(read({8, 0}, 3).empty());
  CHECK_FALSE(read({8, 99}, 1).empty());
  CHECK_FALSE(read({0xFF}, 1).empty());
  CHECK_FALSE(read({8, 3, 0x1A, 2, 2, 4, 0x4A, 1, 8, 0x52, 1, 1}, 8).empty());  // a permutation of other numbers
  const runtime::Tiling tiling(tiled, 8, "x");
  CHECK(tiling.is_specified());
  const auto [start, size] = tiling.part({6, 8}, 5, "x");
  CHECK(start == std::vector<std::int64_t>{3, 2});
  CHECK(size == std::vector<std::int64_t>{3, 2});
  CHECK_FALSE(refused([&] { static_cast<void>(tiling.part({5, 8}, 0, "x")); }).empty());
  CHECK(runtime::Tiling(Bytes{8, 0}, 3, "x").is_whole());
}

std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}

std::string field(unsigned number, std::uint64_t value) { return varint(number << 3) + varint(value); }
std::string field(unsigned number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}

/// A part of an axis of the mesh: how many parts of it are before this part, and how many parts there are.
struct Axis {
  std::size_t axis, before, size;
};

/// What an xla.OpSharding with an xla.NamedShardingProto says.
struct Named {
  std::vector<std::size_t> sizes;  // of the mesh
  std::vector<std::vector<Axis>> dimensions;
  std::vector<std::size_t> ids = {};  // of devices, where these have others than their places

  std::string str() const {
    std::string mesh, numbers, said;
    for (const std::size_t size : sizes) mesh += field(1, field(1, "axis"s) + field(2, size));
    for (const std::size_t id : ids) numbers += varint(id);
    if (!ids.empty()) mesh += field(2, numbers);
    for (const auto& axes : dimensions) {
      std::string references;
      for (const auto& [axis, before, size] : axes) {
        const bool is_whole = axis < sizes.size() && before == 1 && size == sizes[axis];
        const std::string part = is_whole ? "" : field(2, field(1, before) + field(2, size));
        references += field(1, (axis == 0 ? "" : field(1, axis)) + part);
      }
      said += field(3, references + field(2, 1));
    }
    return field(1, 3) + field(14, field(2, mesh) + said);
  }
};

runtime::HloShardings of_result(const std::string& sharding) {
  return runtime::read_hlo_shardings(field(12, sharding), "hlo");
}

TEST_CASE("axes of a mesh, as newer plugins name them, become tiles") {
  for (const Named& named : std::vector<Named>{{{8}, {{{0, 1, 8}}}},
                                               {{4, 2}, {{{0, 1, 4}}, {{1, 1, 2}}}},
                                               {{4, 2}, {{{1, 1, 2}}, {{0, 1, 4}}}},
                                               {{2, 3, 4}, {{{2, 1, 4}, {0, 1, 2}}, {}}},
                                               {{4, 2}, {{}, {{1, 1, 2}}}},                      // copies
                                               {{8, 2}, {{{0, 2, 2}}, {{0, 1, 2}, {1, 1, 2}}}},  // parts of an axis
                                               {{2, 3}, {{{1, 1, 3}}}, {5, 1, 3, 0, 2, 4}}}) {
    std::size_t devices = 1;
    for (const std::size_t size : named.sizes) devices *= size;
    const std::string found = of_result(named.str()).results.at(0);
    const runtime::Tiling tiling(bytes_of(found), static_cast<std::uint32_t>(devices), "x");
    for (std::size_t device = 0; device < devices; ++device) {
      std::vector<std::size_t> place(named.sizes.size());
      for (std::size_t axis = place.size(), left = device; axis-- > 0; left /= named.sizes[axis])
        place[axis] = left % named.sizes[axis];
      std::vector<std::int64_t> shape, tile;
      for (const auto& axes : named.dimensions) {
        shape.push_back(1), tile.push_back(0);
        for (const auto& [axis, before, size] : axes) {
          const std::size_t index = place[axis] / (named.sizes[axis] / before / size) % size;
          shape.back() *= static_cast<std::int64_t>(size);
          tile.back() = tile.back() * static_cast<std::int64_t>(size) + static_cast<std::int64_t>(index);
        }
      }
      const std::size_t id = named.ids.empty() ? device : named.ids[device];
      CHECK_MESSAGE(tiling.part(shape, id, "x").first == tile, hexadecimal(named.str()), " ", device);
    }
  }
}

TEST_CASE("what is not divided is replicated, tiles that are there stay, and the rest is refused") {
  const std::string whole = Named{{4, 2}, {{}, {}}}.str(), one = Named{{}, {}, {3}}.str();
  CHECK(of_result(field(1, 2) + field(5, whole) + field(5, one)).results ==
        std::vector<std::string>{"", field(1, 1) + field(3, 1) + field(4, 3)});
  const std::string tiled = field(1, 3) + field(3, 2) + field(4, 1) + field(4, 0);
  const auto both = runtime::read_hlo_shardings(field(14, tiled) + field(12, tiled), "hlo");
  CHECK((both.parameters == std::vector{tiled} && both.results == std::vector{tiled}));
  const std::string shortened = Named{{4, 2}, {{{0, 1, 4}}}}.str();
  for (const std::string& wrong :
       {shortened.substr(0, shortened.size() - 1), Named{{0}, {{}}}.str(), Named{{1 << 15, 1 << 15}, {{}}}.str(),
        Named{{4}, {{{0, 3, 2}}}}.str(), Named{{4}, {{{0, 1, 4}}}, {1, 2}}.str(), Named{{4}, {{{1, 1, 4}}}}.str()})
    CHECK_MESSAGE(refused([&] { of_result(wrong); }) == "the plugin shows a compiled module that cannot be read",
                  hexadecimal(wrong));
}

}  // namespace
}  // namespace jaxexp
