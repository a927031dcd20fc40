// Arithmetic on what modules with open sizes compute of sizes.
#include <doctest/doctest.h>

#include <optional>
#include <string_view>

#include "runtime/refine/numbers.h"
#include "runtime/refine/tables.h"

namespace jaxexp {
namespace {

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

}  // namespace
}  // namespace jaxexp
