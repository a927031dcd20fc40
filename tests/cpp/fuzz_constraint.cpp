// Fuzz target: constraints on dimension variables, and what making them is estimated to take. A line is a constraint;
// the last one is a dimension.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "target.h"
#include "wire/base/error.h"
#include "wire/exported/constraint.h"
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
  const auto lines = lines_of(text);
  wire::Growth growth(wire::max_symbolic_steps(size));
  try {
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
      const wire::Constraint constraint = wire::parse_constraint(lines[i], {});
      growth.constraint(constraint, {});
      if (constraint.is_equality) growth.substitute(constraint, {3, 5, 64, true}, {});
    }
    growth.dimension(wire::parse_dimension(lines.back(), {}), {});
  } catch (const wire::Error& error) {
    tests::require(!error.expected.empty() && tests::is_utf8(error.found) && error.found.size() < 1000,
                   "an error can be shown");
  }
  return 0;
}
