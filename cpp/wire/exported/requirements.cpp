// The errors of all checks.
#include "wire/exported/requirements.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace jaxexp::wire {

using std::to_string;

void refuse_count(const Path& path, const char* what, std::uint64_t expected, std::uint64_t found) {
  throw Error(path, to_string(expected) + " " + what, to_string(found));
}

void refuse_index(std::uint64_t index, std::uint64_t size, const Path& path) {
  throw Error(path, "an index below " + to_string(size), to_string(index));
}

void require_distinct(std::vector<std::string_view> names, const Path& path, const char* what) {
  if (names.empty()) return;
  // One text in many places is found by its place: sorting would compare all of it, again and again. What is left is
  // no longer than the artifact.
  const auto place = [](std::string_view name) { return reinterpret_cast<std::uintptr_t>(name.data()); };
  std::ranges::sort(names, {}, place);
  const auto same = std::ranges::adjacent_find(names, {}, place);
  if (same != names.end() && !same->empty())
    throw Error(path, std::string("each ") + what + " once", quoted(*same) + " again");
  std::ranges::sort(names);
  if (names.front().empty()) throw Error(path, std::string("a name of each ") + what, "an empty string");
  const auto twin = std::ranges::adjacent_find(names);
  if (twin != names.end()) throw Error(path, std::string("each ") + what + " once", quoted(*twin) + " again");
}

void require_distinct(const Strings* names, const Path& path, const char* what) {
  if (Values::length(names) == 1 && names->Get(0)->size() > 0) return;
  std::vector<std::string_view> texts;
  for (std::uint32_t i = 0; i < Values::length(names); ++i) texts.push_back(names->Get(i)->string_view());
  require_distinct(std::move(texts), path, what);
}

void refuse_copy(const Path& path, const char* expected) {
  throw Error(path, expected, "another one, so one of the two is damaged");
}

std::string quoted(std::string_view text) { return "'" + shortened(text) + "'"; }

}  // namespace jaxexp::wire
