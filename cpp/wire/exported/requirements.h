// What all checks require of tables, and the errors they throw.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/exported/generation.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

using Strings = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

/// A field that has to be there.
template <class T>
const T& required(const T* field, const Path& parent, std::string_view name) {
  if (!field) throw Error({&parent, name}, "a value", "none");
  return *field;
}

/// The number of an enumerator. The error says which reader may know a number that is unknown here; `root` has what it
/// needs for that.
template <class Enum>
void require_known(const schema::Exported& root, const char* what, Enum value, Enum last, const Path& parent,
                   std::string_view name, Enum first = Enum{}) {
  const auto text = [](Enum number) { return std::to_string(static_cast<int>(number)); };
  if (value < first || value > last)
    throw Error({&parent, name}, what + (" (" + text(first)) + " to " + text(last) + ")",
                unknown(static_cast<int>(value), root));
}

[[noreturn]] void refuse_count(const Path& path, const char* what, std::uint64_t expected, std::uint64_t found);
inline void require_count(const Path& path, const char* what, std::uint64_t expected, std::uint64_t found) {
  if (expected != found) refuse_count(path, what, expected, found);
}

[[noreturn]] void refuse_index(std::uint64_t index, std::uint64_t size, const Path& path);
inline void require_index(std::uint64_t index, std::uint64_t size, const Path& path) {
  if (index >= size) refuse_index(index, size, path);
}

/// All names have to be different, and none may be empty.
void require_distinct(std::vector<std::string_view> names, const Path& path, const char* what);
void require_distinct(const Strings* names, const Path& path, const char* what);

/// Calls a function with each element of a vector and the element's path. The vector may be absent.
template <class Vector, class Function>
void each(const Vector* vector, const Path& parent, std::string_view name, const Function& function) {
  for (std::uint32_t i = 0; i < Values::length(vector); ++i) function(*vector->Get(i), Path{&parent, name, i});
}

[[noreturn]] void refuse_copy(const Path& path, const char* expected);

/// A text of the artifact, for an error.
std::string quoted(std::string_view text);

}  // namespace jaxexp::wire
