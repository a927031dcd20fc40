// One pass over the bytes of a member that is right; a second pass finds out what is wrong with another.
#include "wire/archive/verify_member.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <optional>

#include "wire/artifact/layout.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

// Runs of ranges, in the order of their positions.

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
    assert(position <= file.bytes().size() && size <= file.bytes().size() - position);
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

namespace {

/// The bytes where numbers in them can be read: a copy where they are not aligned as artifacts are, which is what a
/// range of a file may be.
std::span<const std::uint8_t> in_place_or_moved(std::span<const std::uint8_t> bytes, std::vector<std::uint64_t>& copy) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint64_t) == 0) return bytes;
  copy.resize((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return {reinterpret_cast<const std::uint8_t*>(copy.data()), bytes.size()};
}

}  // namespace

Texts verify_member(const ArchiveIndex& index, std::uint32_t number, std::span<const std::uint8_t> bytes,
                    const ModuleDigests& modules, MetadataCache& known, std::vector<std::uint64_t>& aligned) {
  const schema::Member& member = index.member(number);
  const schema::Place& place = *member.place();
  if (bytes.size() != std::size_t{place.header()} + place.size())
    throw Error({}, std::to_string(place.size()) + " bytes", std::to_string(bytes.size()));
  const auto artifact = in_place_or_moved(bytes.subspan(place.header()), aligned);
  std::vector<Opened::Bytes> apart;
  if (place.apart())  // by their sizes only: their bytes are what the digests were made of
    for (const schema::Module* module : *member.modules())
      apart.emplace_back(static_cast<const std::uint8_t*>(nullptr), module->size());
  std::optional<Opened> opened;
  known.open(artifact, apart, opened);
  if (place.apart()) {
    for (const auto& [order, function] : Chain(opened->root())) {
      const schema::Module& module = *member.modules()->Get(static_cast<std::uint32_t>(order));
      opened->trailer()->check_module(modules.at({module.position(), module.size()}), order);
    }
  } else if (digest(artifact) != stored(*member.digest())) {
    for (const auto& [order, function] : Chain(opened->root())) opened->check_module(function, order);
    throw Error({}, "the bytes as they were added to the archive", "different bytes; get another copy of it");
  }
  if (!place.shared()) index.check_header(number, bytes.first(place.header()));
  return texts_of(*opened);
}

}  // namespace jaxexp::wire
