// MLIR bytecode as it is read and checked, and modules that are made static.
#include <doctest/doctest.h>
#include <jaxexp/artifact.h>

#include <algorithm>
#include <string>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/numbers.h"
#include "runtime/refine/parts.h"
#include "runtime/refine/refine.h"
#include "shared.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/cursor.h"
#include "wire/bytecode/head.h"
#include "wire/bytecode/sections.h"

namespace jaxexp {
namespace {

using tests::Bytes;
using tests::refused;

const wire::Path where{nullptr, "module"};

Bytes module_of(const std::string& name) {
  const Bytes file = tests::golden(name);
  const Artifact artifact(file);
  const auto module = artifact.module();
  return {module.begin(), module.end()};
}

const Bytes& sin_module() {
  static const Bytes module = module_of("2026-11-21_jaxexp-0.1.0_jax-0.12.0.1/sin.bin");
  return module;
}

const Bytes& open_module() {
  static const Bytes module = module_of("2026-11-21_jaxexp-0.1.0_jax-0.12.0.1/symbolic_batch.bin");
  return module;
}

TEST_CASE("numbers of bytecode have one to nine bytes") {
  const auto number = [](const Bytes& bytes) { return wire::Cursor(bytes, where).number(); };
  CHECK(number({0x01}) == 0);
  CHECK(number({0xFF}) == 127);
  CHECK(number({0x02, 0x02}) == 128);
  CHECK(number({0xFE, 0xFF}) == (1 << 14) - 1);
  CHECK(number({0x04, 0x00, 0x02}) == 1 << 14);
  CHECK(number({0x80, 0, 0, 0, 0, 0, 0, 0x80}) == std::uint64_t{1} << 55);
  CHECK(number({0x00, 1, 2, 3, 4, 5, 6, 7, 8}) == 0x0807060504030201);
  const auto signed_number = [](const Bytes& bytes) { return wire::Cursor(bytes, where).signed_number(); };
  CHECK(signed_number({0x03}) == -1);
  CHECK(signed_number({0x05}) == 1);
  CHECK(signed_number({0x00, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}) == INT64_MIN);
  std::string written;
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, std::uint64_t{1} << 55, ~std::uint64_t{0}})
    runtime::refine::put_number(written, value);
  const Bytes bytes(written.begin(), written.end());
  wire::Cursor cursor(bytes, where);
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, std::uint64_t{1} << 55, ~std::uint64_t{0}})
    CHECK(cursor.number() == value);
  CHECK(cursor.at_end());
}

TEST_CASE("a cursor stays inside of its section") {
  const auto fails = [](const Bytes& bytes, const auto& use) {
    return refused([&] {
      wire::Cursor cursor(bytes, where);
      use(cursor);
    });
  };
  CHECK(fails({}, [](auto& at) { at.byte(); }) == "0 bytes where 1 have to follow at byte 0");
  CHECK_FALSE(fails({0x02}, [](auto& at) { at.number(); }).empty());
  CHECK_FALSE(fails({0x09, 1}, [](auto& at) { at.count("things"); }).empty());
  CHECK_FALSE(fails({0x07}, [](auto& at) { at.index(3, "things"); }).empty());
  CHECK_FALSE(fails({'a', 'b'}, [](auto& at) { at.text(); }).empty());
  CHECK_FALSE(fails({0x80, 0x03, 0x07, 0}, [](auto& at) { at.section(); }).empty());  // aligned to 3 bytes
  CHECK(fails({0x05, 'a', 0, 0xFF}, [](auto& at) {
          CHECK(at.index(3, "things") == 2);
          CHECK(at.text().size() == 1);
          CHECK(at.left() == 1);
        }).empty());
}

TEST_CASE("a module says who wrote it, and what is in it") {
  const Bytes& module = sin_module();
  CHECK(wire::begins_like_bytecode(module));
  CHECK(wire::producer_of(module)->starts_with("StableHLO_v"));
  const auto contents = wire::read_contents(module, where);
  REQUIRE(contents);
  CHECK(contents->operations.at("vhlo.sine_v2") == 1);
  CHECK(contents->operations.at("vhlo.func_v1") == 1);
  CHECK((contents->custom_calls && contents->custom_calls->empty()));
  const auto head = wire::read_head(module, where);
  CHECK(head.operations.contains("vhlo.sine_v2"));
  CHECK(std::ranges::find(head.dialects, "vhlo") != head.dialects.end());
  const auto inventory = wire::read_inventory(module, where);
  REQUIRE(inventory);
  CHECK(inventory->operations == contents->operations);
  CHECK_FALSE(inventory->has_open_sizes);
  CHECK(wire::read_inventory(open_module(), where)->has_open_sizes);
  CHECK_FALSE(wire::begins_like_bytecode(Bytes{'M', 'L'}));
  CHECK_FALSE(wire::producer_of(Bytes(20)));
}

TEST_CASE("integers wrap around as their types do, and are divided as plugins do it") {
  using namespace runtime::refine;
  constexpr Element i8{1, 8, true, true}, u8{2, 8, true, false}, i1{3, 1, true, false}, i64{4, 64, true, true};
  CHECK(wrapped(200, i8) == -56);
  CHECK(wrapped(300, u8) == 44);
  CHECK(wrapped(-1, u8) == 255);
  CHECK(wrapped(2, i1) == 0);
  const auto compute = [](std::string_view operation, const Element& element, std::int64_t a, std::int64_t b) {
    const Known x{element, {}, {a}}, y{element, {}, {b}};
    const Known* const operands[] = {&x, &y};
    const auto found = computed(operation, operands, element);
    return found ? std::optional(found->at(0)) : std::nullopt;
  };
  CHECK(compute("add", i8, 100, 100) == -56);
  CHECK(compute("subtract", u8, 1, 2) == 255);
  CHECK(compute("multiply", i64, INT64_MAX, 2) == -2);
  CHECK(compute("divide", i64, -7, 2) == -3);
  CHECK(compute("divide", i64, INT64_MIN, -1) == INT64_MIN);
  CHECK(compute("remainder", i64, -7, 2) == -1);
  CHECK(compute("remainder", i64, INT64_MIN, -1) == 0);
  CHECK_FALSE(compute("divide", i64, 1, 0));
  CHECK_FALSE(compute("remainder", u8, 1, 0));
  CHECK(compute("maximum", u8, 200, 3) == 200);
  CHECK(compute("minimum", i64, -1, 3) == -1);
  CHECK(compute("xor", i1, 1, 1) == 0);
  CHECK(compute("add", i1, 1, 1) == 1);
  CHECK_FALSE(compute("sine", i64, 1, 1));
  const Known ordered{i64, {3}, {1, 2, 3}}, twos{i64, {3}, {2, 2, 2}};
  CHECK(compared(Direction::less, ordered, twos) == Integers{1, 0, 0});
  CHECK(compared(Direction::greater_equal, ordered, twos) == Integers{0, 1, 1});
  CHECK(compared(Direction::different, ordered, twos) == Integers{1, 0, 1});
}

TEST_CASE("elements are moved as the operations do it") {
  using namespace runtime::refine;
  constexpr Element i64{4, 64, true, true};
  const Known matrix{i64, {2, 3}, {1, 2, 3, 4, 5, 6}}, row{i64, {1, 3}, {7, 8, 9}};
  const Known* const both[] = {&matrix, &row};
  CHECK(concatenated(both, 0, {3, 3}) == Integers{1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Known* const twice[] = {&matrix, &matrix};
  CHECK(concatenated(twice, 1, {2, 6}) == Integers{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6});
  CHECK(sliced(matrix, {0, 1}, {1, 1}, {2, 2}) == Integers{2, 3, 5, 6});
  CHECK(sliced(matrix, {1, 0}, {1, 2}, {1, 2}) == Integers{4, 6});
  CHECK_FALSE(sliced(matrix, {1, 0}, {1, 1}, {2, 3}));
  CHECK(broadcast({i64, {2}, {1, 2}}, {0}, {2, 3}) == Integers{1, 1, 1, 2, 2, 2});
  CHECK(broadcast({i64, {}, {5}}, {}, {2}) == Integers{5, 5});
  CHECK(chosen({i64, {3}, {7, 8, 9}}, {i64, {3}, {-1, 1, 10}}) == Integers{7, 8, 9});
  CHECK(count_of({2, 3, 4}) == 24);
  CHECK(count_of({}) == 1);
  CHECK(count_of({1 << 20, 0, 1 << 30}) == 0);
  CHECK_FALSE(count_of({-1}));
  CHECK_FALSE(count_of({1 << 30, 1 << 30}));
}

TEST_CASE("a module with open sizes is made static once, for shapes that it takes") {
  using namespace runtime;
  const std::vector<refine::Shape> shapes{{5, 4}, {4, 3}};
  const auto static_module = refine::with_shapes(open_module(), where, shapes);
  REQUIRE(static_module);
  wire::check_bytecode(*static_module, where);
  CHECK_FALSE(wire::read_inventory(*static_module, where)->has_open_sizes);
  CHECK_FALSE(refine::with_shapes(sin_module(), where, std::vector<refine::Shape>{{}}));
  CHECK(static_module == refine::with_shapes(open_module(), where, shapes));
  const auto wrong = [](const std::vector<refine::Shape>& shapes) {
    return refused([&] { refine::with_shapes(open_module(), where, shapes); });
  };
  for (const refine::Shape& shape : {refine::Shape{5, 3}, {5}, {-1, 4}, {1LL << 45, 4}, {1LL << 62, 4}})
    CHECK(wrong({shape, {4, 3}}).find("one of its arrays has a shape that its type does not allow") !=
          std::string::npos);
  CHECK(wrong({}).find("main function takes 2 arguments, and not 0") != std::string::npos);
}

TEST_CASE("what a module needs no change for stays as it is") {
  using namespace runtime;
  const adapt::Changes::Targets all = [](std::string_view) { return true; };
  CHECK_FALSE(adapt::changed(sin_module(), where, {true, true, true, true, true, true, all, all}));
}

}  // namespace
}  // namespace jaxexp
