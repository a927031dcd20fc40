// The parser does not call itself, so levels cost no stack.
#include "wire/tensors/json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "wire/base/error.h"

#define JSON_NO_IO
#define JSON_USE_GLOBAL_UDLS 0
#define JSON_USE_IMPLICIT_CONVERSIONS 0
#include <nlohmann/json.hpp>

namespace jaxexp::wire {
namespace {

using Kind = JsonValue::Kind;

constexpr std::size_t deepest = 64;

class Events {
 public:
  Events(std::string_view text, std::string_view what, std::string_view texts, bool takes_all_numbers,
         const std::function<void(const JsonPath&, JsonValue)>& take)
      : text_(text), what_(what), texts_(texts), takes_all_numbers_(takes_all_numbers), take_(take) {}

  void read() {
    // For the parser, a zero is the end.
    if (text_.find('\0') != text_.npos) throw TensorsError({}, what_ + " in JSON and UTF-8", "a zero");
    nlohmann::json::sax_parse(text_, this);
    if (refused_) throw *refused_;
  }

  bool null() { return tell({Kind::other, "null"}); }
  bool boolean(bool value) { return tell({Kind::other, value ? "true" : "false"}); }
  bool number_integer(std::int64_t value) { return number(std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (value > std::numeric_limits<std::int64_t>::max()) return number(std::to_string(value));
    return tell({Kind::natural, std::to_string(value), static_cast<std::int64_t>(value)});
  }
  bool number_float(double, const std::string& text) { return number(text); }
  bool string(std::string& text) { return tell({Kind::text, std::move(text)}); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Kind::object); }
  bool start_array(std::size_t) { return open(Kind::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (!names_.back().insert(name).second)
      throw TensorsError({}, "names that are different", "'" + escaped(shortened(name)) + "' twice");
    path_.back() = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error) {
    const std::string_view message = error.what(), rest = text_.substr(std::min(position - 1, text_.size()));
    for (const std::string_view word : {"NaN", "Infinity"})
      if (rest.starts_with(word)) return number(std::string(word), true);
    if (dynamic_cast<const nlohmann::json::out_of_range*>(&error)) return number(token, true);
    if (message.find("invalid string: surrogate") != message.npos)
      throw TensorsError({}, texts_, "half of a surrogate pair: " + escaped(shortened(token)));
    throw TensorsError({}, what_ + " in JSON and UTF-8",
                       escaped(shortened(message.substr(std::min(message.find("line "), message.size())), 200)));
  }

 private:
  bool number(std::string text, bool is_none = false) {
    if (!takes_all_numbers_ || is_none)
      throw TensorsError({}, "natural numbers below 2**63", "'" + escaped(shortened(text)) + "'");
    return tell({Kind::other, std::move(text)});
  }

  bool open(Kind kind) {
    if (path_.size() == deepest) throw TensorsError({}, what_ + " that is a JSON object", "one of more than 64 levels");
    if (path_.empty() && kind != Kind::object) throw TensorsError({}, what_ + " that is a JSON object", "an array");
    tell({kind});
    path_.emplace_back();
    names_.emplace_back();
    return true;
  }

  bool close() {
    path_.pop_back();
    names_.pop_back();
    return tell({Kind::end});
  }

  bool tell(JsonValue value) {
    if (path_.empty() && value.kind != Kind::object && value.kind != Kind::end)
      throw TensorsError({}, what_ + " that is a JSON object", value.str());
    try {
      if (!refused_) take_(path_, std::move(value));
    } catch (const TensorsError& error) {
      refused_ = error;
    }
    return true;
  }

  const std::string_view text_;
  const std::string what_, texts_;
  const bool takes_all_numbers_;
  const std::function<void(const JsonPath&, JsonValue)>& take_;
  JsonPath path_;
  std::vector<std::set<std::string>> names_;  // in each object that is open
  std::optional<TensorsError> refused_;
};

}  // namespace

std::string JsonValue::str() const {
  switch (kind) {
    case Kind::object: return "an object";
    case Kind::array: return "an array";
    case Kind::text: return "'" + escaped(shortened(text)) + "'";
    default: return escaped(shortened(text));
  }
}

void read_json_object(std::string_view json, std::string_view what, std::string_view texts, bool takes_all_numbers,
                      const std::function<void(const JsonPath& path, JsonValue value)>& take) {
  Events(json, what, texts, takes_all_numbers, take).read();
}

}  // namespace jaxexp::wire
