// JSON as it is in files of tensors, from the front to the back: values are told and not kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace jaxexp::wire {

struct JsonValue {
  /// What is in an object or an array comes behind it, and its end behind that.
  enum class Kind { object, array, end, text, natural, other } kind;
  std::string text = {};  // of `text`, and of numbers and words as they are there
  std::int64_t natural = 0;

  /// As messages show it.
  std::string str() const;
};

/// The names of the members that lead to a value; an element of an array has none there.
using JsonPath = std::vector<std::string>;

/// Reads an object; what is in it goes to `take`. Throws TensorsError where it is none, or has a name twice, more than
/// 64 levels or, unless `takes_all_numbers`, a number that is not natural; then what `take` threw first, which is not
/// called again. `what` is what messages call the JSON, and `texts` what its texts are, which have to be Unicode.
void read_json_object(std::string_view json, std::string_view what, std::string_view texts, bool takes_all_numbers,
                      const std::function<void(const JsonPath& path, JsonValue value)>& take);

}  // namespace jaxexp::wire
