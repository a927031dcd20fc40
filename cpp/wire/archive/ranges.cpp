// Runs of ranges, in the order of their positions.
#include "wire/archive/ranges.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace jaxexp::wire {
namespace {

constexpr std::uint64_t close = 256;  // reading so many bytes in vain takes less time than another call
constexpr std::size_t word = sizeof(std::uint64_t);

struct Run {
  std::uint64_t begin, end;  // in the file
  std::size_t at;            // in the memory, of the multiple of eight in front of its beginning
};

}  // namespace

std::vector<FileBytes::Bytes> read_ranges(const FileBytes& file, std::span<const Range> ranges,
                                          std::vector<std::uint64_t>& memory) {
  std::vector<std::size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return ranges[i].position; });
  std::vector<Run> runs;
  std::vector<std::size_t> run_of(ranges.size());
  for (const std::size_t i : order) {
    const auto [position, size] = ranges[i];
    if (runs.empty() || position > runs.back().end + close) runs.push_back({position, position, 0});
    runs.back().end = std::max(runs.back().end, position + size);
    run_of[i] = runs.size() - 1;
  }
  std::size_t words = 0;
  for (Run& run : runs) {
    run.at = words * word;
    words += static_cast<std::size_t>((run.begin % word + (run.end - run.begin) + word - 1) / word);
  }
  if (memory.size() < words) memory.resize(words);  // zeros are written once, not for each call
  auto* const start = reinterpret_cast<std::uint8_t*>(memory.data());
  const auto place_of = [&](const Run& run, std::uint64_t position) {
    return start + run.at + static_cast<std::size_t>(run.begin % word + (position - run.begin));
  };
  for (const Run& run : runs)
    file.read(run.begin, {place_of(run, run.begin), static_cast<std::size_t>(run.end - run.begin)});
  std::vector<FileBytes::Bytes> found;
  for (std::size_t i = 0; i < ranges.size(); ++i)
    found.emplace_back(place_of(runs[run_of[i]], ranges[i].position), static_cast<std::size_t>(ranges[i].size));
  return found;
}

}  // namespace jaxexp::wire
