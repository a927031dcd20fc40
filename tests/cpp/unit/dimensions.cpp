// Dimensions as JAX prints them, constraints as users write them, and what both are once sizes are known.
#include "runtime/signature/dimensions.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "shared.h"
#include "wire/exported/dimension.h"
#include "wire/exported/growth.h"
#include "wire/exported/limits.h"

namespace jaxexp {
namespace {

using tests::refused;

std::string form(std::string_view text) { return wire::canonical(wire::parse_dimension(text, {})); }
std::string wrong(std::string_view text) {
  return refused([&] { wire::parse_dimension(text, {}); });
}
std::string wrong_constraint(std::string_view text) {
  return refused([&] { wire::parse_constraint(text, {}); });
}

TEST_CASE("sizes are digits without a leading zero that fit into 63 bits") {
  for (const char* text : {"0", "1", "10", "9223372036854775807"}) CHECK_MESSAGE(wire::is_size(text), text);
  for (const char* text : {"", "00", "01", "-1", "+1", " 1", "1 ", "a", "1a", "9223372036854775808", "1.0"})
    CHECK_FALSE_MESSAGE(wire::is_size(text), text);
}

TEST_CASE("what JAX prints is read, and has one form in whatever order and spelling") {
  for (const char* text :
       {"b", "2*a", "-1*b + a", "a + -1*b", "- a + b", "a^2*b^3 + 4*c - 7", "floordiv(a, 2)", "mod(b, -3)",
        "max(a, 0)*min(a, b)^2", "non_negative(a - 1)", "max(mod(floordiv(a, 2), b), 1)", "名", "_x", "non_negative"})
    CHECK_MESSAGE(wrong(text).empty(), text);
  CHECK(form("a + -1*b") == form("a - b"));
  CHECK(form("a - b") == form("- b + a"));
  CHECK(form("non_negative(a)") == form("max(a, 0)"));
  CHECK(form("a*b^2") == form("b^2*a"));
  CHECK(form("max(a, b) + 1") == form("1 + max(a, b)"));
  CHECK(form("a - b") != form("b - a"));
  CHECK(form("max(a, b)") != form("max(b, a)"));
  CHECK(form("2*a") != form("a^2"));
}

TEST_CASE("what JAX does not print is refused, and where it is") {
  for (const std::string& text :
       tests::texts("|a+b|a +b|1*a|0*a|- 1*a|a^1|a^0|a^64|007*a|a - 0|-0|2|a + 2*a|a*a|max(1, 2)|max(a)|max(a,b)"
                    "|f(a)|mod(a, 0)|floordiv(a, 0)|max|_|a b|((a))|9223372036854775808*a|a^|- - a|a + 0"))
    CHECK_FALSE_MESSAGE(wrong(text).empty(), text);
  CHECK(wrong("2*a + b+c") == "'2*a + b+c' (see character 8)");
  CHECK(wrong("-3") == "'-3'");
  const auto nested = [](std::size_t depth) {
    std::string text = "a";
    for (std::size_t i = 0; i < depth; ++i) text = "mod(" + text + ", 5)";
    return text;
  };
  CHECK(wrong(nested(wire::max_dimension_depth)).empty());
  CHECK(wrong(nested(wire::max_dimension_depth + 1)) == "more");
  CHECK_FALSE(wrong(std::string(wire::max_dimension_length + 1, 'a')).empty());
}

TEST_CASE("constraints are what the parser of JAX reads, spaces and foldable constants included") {
  for (const char* text :
       {"a == b", "a==b", " mod( b,8 ) == 0", "a >= 2^3*b - max(1, 2)", "(a) <= (b)", "a^0 == 1", "a*a >= +a"})
    CHECK_MESSAGE(wrong_constraint(text).empty(), text);
  for (const char* text : {"", "a", "a = b", "a < b", "a == b == c", "a ==", "(a == b", "f(a) == b", "a^64 == b",
                           "a == 2^63", "a b == c", "a == mod(b)", "a == - - b"})
    CHECK_FALSE_MESSAGE(wrong_constraint(text).empty(), text);
  CHECK(wire::parse_constraint("a == b", {}).is_equality);
  const auto swapped = wire::parse_constraint("a <= 2*b", {});
  CHECK_FALSE(swapped.is_equality);
  CHECK(wire::canonical(swapped.left) == wire::canonical(wire::parse_constraint("2*b >= a", {}).left));
  const auto folded = wire::parse_constraint("2^3*3*a >= max(1, 7)", {});
  CHECK(folded.left.terms.at(0).coefficient == 24);
  CHECK(folded.right.terms.at(0).coefficient == 7);
}

TEST_CASE("what equalities substitute is refused before it grows beyond its steps") {
  const auto spend = [](std::uint64_t steps, std::string_view dimension) {
    return refused([&] {
      wire::Growth growth(steps);
      const auto equality = wire::parse_constraint("a == b + c", {});
      growth.constraint(equality, {});
      growth.substitute(equality, {2, 2, 1, false}, {});
      CHECK(growth.substitutes());
      growth.dimension(wire::parse_dimension(dimension, {}), {});
    });
  };
  CHECK(spend(100000, "a^2 + 1").empty());
  CHECK_FALSE(spend(100000, "a^60*d^60*max(a, d)^60*mod(a, d)^60").empty());
  CHECK_FALSE(spend(10, "a^2 + 1").empty());
  CHECK_FALSE(wire::Growth(1).substitutes());
}

TEST_CASE("arithmetic notices what does not fit into 64 bits") {
  using namespace runtime;
  constexpr auto most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  CHECK(add(most - 1, 1) == most);
  CHECK_FALSE(add(most, 1));
  CHECK_FALSE(add(least, -1));
  CHECK(multiply(least, 1) == least);
  CHECK_FALSE(multiply(least, -1));
  CHECK_FALSE(multiply(most / 2 + 1, 2));
  CHECK(multiply(-3, 5) == -15);
  CHECK(floor_divide(-7, 2) == -4);
  CHECK(floor_divide(7, -2) == -4);
  CHECK_FALSE(floor_divide(1, 0));
  CHECK_FALSE(floor_divide(least, -1));
  CHECK(power(2, 62) == std::int64_t{1} << 62);
  CHECK_FALSE(power(2, 63));
  CHECK_FALSE(add(std::nullopt, 1));
}

TEST_CASE("dimensions are computed as Python does it") {
  runtime::Expressions known;
  const auto value = [&](std::string_view text) {
    return runtime::Dimension(text, known).evaluate({{"a", 7}, {"b", -2}, {"z", 0}});
  };
  CHECK(value("12") == 12);
  CHECK(value("2*a + b - 1") == 11);
  CHECK(value("floordiv(a, b)") == -4);
  CHECK(value("mod(a, b)") == -1);
  CHECK(value("max(a, b)*min(a, b)") == -14);
  CHECK(value("non_negative(b)") == 0);
  CHECK(value("a^2*b^3") == -392);
  CHECK_FALSE(value("c"));
  CHECK_FALSE(value("mod(a, z)"));
  CHECK_FALSE(value("a^63"));
  CHECK(runtime::variables_in(known).size() == 4);
}

TEST_CASE("variables are found from sizes, and all sizes are compared") {
  runtime::Expressions known;
  const auto found = [&](const std::vector<std::pair<std::string_view, std::int64_t>>& sizes) {
    std::vector<runtime::Dimension> dimensions;
    for (const auto& [text, size] : sizes) dimensions.emplace_back(text, known);
    std::vector<runtime::Equation> equations;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      equations.push_back({&dimensions[i], sizes[i].second, "x.shape[" + std::to_string(i) + "]"});
    return runtime::str(runtime::solve(equations));
  };
  CHECK(found({{"2*a + 1", 9}, {"a*b", 12}}) == "a=4,b=3");
  CHECK(found({{"a*b", 12}, {"b", 3}, {"5", 5}}) == "a=4,b=3");
  const auto fails = [&](const std::vector<std::pair<std::string_view, std::int64_t>>& sizes) {
    return refused([&] { found(sizes); });
  };
  CHECK_FALSE(fails({{"2*a", 9}}).empty());
  CHECK_FALSE(fails({{"a", 3}, {"a", 4}}).empty());
  CHECK_FALSE(fails({{"mod(a, 3)", 1}}).empty());
  CHECK(fails({{"a", 3}, {"a + 1", 3}}).find("x.shape[1]") != std::string::npos);
  CHECK_FALSE(fails({{"5", 6}}).empty());
}

}  // namespace
}  // namespace jaxexp
