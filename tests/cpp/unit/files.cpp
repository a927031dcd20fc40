// What other programs' files and messages say: NumPy's arrays, small floats, safetensors, protocol buffers, shardings.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <string>

#include "runtime/cases/small_float.h"
#include "runtime/npy/npy.h"
#include "runtime/plugin/protobuf.h"
#include "runtime/signature/tiling.h"
#include "shared.h"
#include "wire/exported/op_sharding.h"
#include "wire/tensors/header.h"

namespace jaxexp {
namespace {

using tests::Bytes;
using tests::bytes_of;
using tests::refused;
using namespace std::string_literals;

TEST_CASE(
    "small floats: each code is a number that has this code, and others are rounded to the nearest, ties to even") {
  for (const char* dtype :
       {"float16", "bfloat16", "float8_e5m2", "float8_e4m3", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz",
        "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"}) {
    const auto* const format = runtime::small_float(dtype);
    REQUIRE(format);
    const bool has_sign = format->special != runtime::SmallFloat::Special::powers;
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
  CHECK(runtime::small_float("float16")->decoded(0x3C00) == 1);
  CHECK(runtime::small_float("float16")->decoded(0x0001) == std::ldexp(1, -24));
  CHECK(runtime::small_float("float16")->encoded(70000) == 0x7C00);
  CHECK(runtime::small_float("bfloat16")->encoded(-1.5) == 0xBFC0);
  CHECK(runtime::small_float("float8_e4m3fn")->encoded(1e9) == 0x7F);
  CHECK(runtime::small_float("float8_e4m3fnuz")->encoded(-0.0) == 0);
  CHECK(runtime::small_float("float4_e2m1fn")->encoded(100) == 7);
  CHECK(runtime::small_float("float8_e8m0fnu")->decoded(127) == 1);
  CHECK(runtime::small_float("float16")->bytes() == 2);
  CHECK(runtime::small_float("float8_e5m2")->bytes() == 1);
  CHECK_FALSE(runtime::small_float("float32"));
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

TEST_CASE("headers of safetensors fill their files") {
  const auto file = [](const std::string& header, std::size_t size) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * i);
    return text + header + std::string(size, '\0');
  };
  const auto wrong = [&](const std::string& header, std::size_t size) {
    const std::string whole = file(header, size);
    return refused([&] { wire::read_header(bytes_of(whole), whole.size()); });
  };
  const std::string one = R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  const std::string whole = file(one, 24);
  const wire::Header header = wire::read_header(bytes_of(whole), whole.size());
  REQUIRE(header.tensors.size() == 1);
  CHECK(header.tensors[0].str() == "F32[2,3]");
  CHECK((header.tensors[0].name == "w" && header.tensors[0].end == 24));
  CHECK(header.size == 8 + one.size());
  CHECK_FALSE(wrong(one, 23).empty());
  CHECK_FALSE(wrong(one, 25).empty());
  CHECK(wrong("{}", 0).empty());
  CHECK(wrong(R"({"__metadata__":{"a":"b"}})", 0).empty());
  for (const char* text :
       {"", "[]", "{", R"({"w":{"dtype":"F99","shape":[],"data_offsets":[0,4]}})",
        R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
        R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", R"({"w":1})", R"({"__metadata__":{"a":1}})"})
    CHECK_FALSE_MESSAGE(wrong(text, 4).empty(), text);
  CHECK(wire::size_of_tensor("F32", std::vector<std::int64_t>{2, 3}) == 24);
  CHECK(wire::size_of_tensor("F4", std::vector<std::int64_t>{3, 2}) == 3);
  CHECK_FALSE(wire::size_of_tensor("F4", std::vector<std::int64_t>{3}));
  CHECK_FALSE(wire::size_of_tensor("F32", std::vector<std::int64_t>{1LL << 40, 1LL << 40}));
  const auto index =
      wire::read_weight_map(bytes_of(R"({"metadata":{"total_size":1.5e3},"weight_map":{"w":"x.safetensors"}})"));
  CHECK(index == wire::WeightMap{{"w", "x.safetensors"}});
}

TEST_CASE("protocol buffers are read field by field, or not at all") {
  using namespace runtime::protobuf;
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

}  // namespace
}  // namespace jaxexp
