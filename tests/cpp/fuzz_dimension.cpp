// Fuzz target: a line is a constraint on dimension variables, the last one a dimension. Each is refused, or has one
// canonical form; and what making them is estimated to take is within its limit.
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"
#include "wire/exported/dimension.h"
#include "wire/exported/growth.h"
#include "wire/exported/limits.h"

namespace {

using namespace jaxexp;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  lines.push_back(text);
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!tests::is_utf8(text)) return 0;  // which verification refuses
  tests::attempt([&] {
    const std::string form = wire::canonical(wire::parse_dimension(text, {}));
    tests::require(tests::is_utf8(form), "a canonical form is UTF-8");
  });
  const auto lines = lines_of(text);
  wire::Growth growth(wire::max_symbolic_steps(size));
  tests::attempt([&] {
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
      const wire::Constraint constraint = wire::parse_constraint(lines[i], {});
      growth.constraint(constraint, {});
      if (constraint.is_equality) growth.substitute(constraint, {3, 5, 64, true}, {});
    }
    tests::attempt([&] { wire::parse_constraint(lines.back(), {}); });
    growth.dimension(wire::parse_dimension(lines.back(), {}), {});
  });
  return 0;
}
