#include "wire/bytecode/convolution.h"

#include <algorithm>
#include <vector>

namespace jaxexp::wire {
namespace {

constexpr std::int64_t limit = std::int64_t{1} << 24;
constexpr std::size_t input_dimensions = 4, kernel_dimensions = 7, input_distances = 8, paddings = 12,
                      kernel_distances = 14, strides = 16;

/// Numbers of an attribute, which are each said, or one for all.
class List {
 public:
  List(const AttributesAndTypes& tables, std::uint32_t attribute) : numbers_(tables.numbers(attribute)) {}

  std::size_t size() const { return static_cast<std::size_t>(numbers_.count); }
  std::int64_t operator[](std::size_t i) const { return numbers_.listed[numbers_.listed.size() == 1 ? 0 : i]; }
  bool are_far() const {
    return std::ranges::any_of(numbers_.listed, [](std::int64_t n) { return n <= -limit || limit <= n; });
  }

 private:
  AttributesAndTypes::Numbers numbers_;
};

}  // namespace

unsigned doubts_of(const AttributesAndTypes& tables, std::span<const std::uint32_t> attributes,
                   std::span<const std::uint32_t> operands) {
  const auto list = [&](std::size_t attribute) { return List(tables, attributes[attribute]); };
  const List padding = list(paddings);
  if (list(strides).are_far() || padding.are_far()) return Doubts::reads_outside;
  bool takes_away = false;
  for (std::size_t i = 0; i + 1 < padding.size(); i += 2) {
    if (padding[i] < 0 && padding[i + 1] > 0) return Doubts::reads_outside;
    takes_away = takes_away || padding[i] < 0;
  }
  const auto places = [&](std::size_t operand, std::size_t of_dimensions, std::size_t of_distances) {
    const List dimensions = list(of_dimensions), distances = list(of_distances);
    if (distances.are_far()) return true;
    const auto sizes = tables.sizes(operands[operand]);
    // A kernel may have more dimensions here than its input; StableHLO refuses that.
    for (std::size_t i = 0; i < std::min(dimensions.size(), distances.size()); ++i) {
      const std::int64_t size = sizes[static_cast<std::size_t>(dimensions[i])];
      if (size <= 0) continue;  // or it is open
      if (size >= limit) return true;
      const std::int64_t count = (size - 1) * distances[i] + 1;
      if (count >= limit || (operand == 0 && count + padding[2 * i] + padding[2 * i + 1] >= limit)) return true;
    }
    return false;
  };
  const bool are_many = places(0, input_dimensions, input_distances) || places(1, kernel_dimensions, kernel_distances);
  return are_many ? Doubts::reads_outside : takes_away ? Doubts::takes_away : 0;
}

}  // namespace jaxexp::wire
