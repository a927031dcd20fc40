// Whatever a file says is only compared and shown here: nothing of it is trusted.
#include "runtime/function/kept_record.h"

#include <algorithm>

#include "wire/base/text.h"

namespace jaxexp::runtime {
namespace {

constexpr std::string_view parameter = "parameter ", result = "result ";

/// A value for a message: all of it, or the part around the place where it differs from another.
std::string shown(const std::string& value, std::size_t differs_at) {
  constexpr std::size_t around = 50;
  if (value.size() <= 2 * around) return value.empty() ? "none" : value;
  const std::size_t start = differs_at > around ? differs_at - around : 0;
  const std::string part = value.substr(std::min(start, value.size()), 2 * around);
  return (start > 0 ? "..." : "") + part + (start + part.size() < value.size() ? "..." : "");
}

}  // namespace

const std::string* value_of(const wire::Entries& entries, std::string_view name) {
  const auto found = std::ranges::find(entries, name, &wire::Entries::value_type::first);
  return found == entries.end() ? nullptr : &found->second;
}

std::string difference(const wire::Entries& record, const wire::Entries& here) {
  for (const auto& [name, value] : here) {
    const std::string* const found = value_of(record, name);
    if (!found) return name + ": the description of the code does not have it";
    if (*found == value) continue;
    const auto same = static_cast<std::size_t>(std::ranges::mismatch(*found, value).in1 - found->begin());
    return name + ": compiled for " + shown(*found, same) + ", here it is " + shown(value, same);
  }
  return {};
}

wire::Entries call_entries(const HloShardings& shardings) {
  wire::Entries call;
  const auto add = [&](std::string_view name, const std::vector<std::string>& protos) {
    for (std::size_t i = 0; i < protos.size(); ++i)
      call.emplace_back(std::string(name) + std::to_string(i), wire::hexadecimal(protos[i]));
  };
  add(parameter, shardings.parameters);
  add(result, shardings.results);
  return call;
}

HloShardings shardings_in(const wire::Entries& call) {
  HloShardings found;
  for (const auto& [name, value] : call) {
    if (name.starts_with(parameter)) found.parameters.push_back(wire::from_hexadecimal(value));
    if (name.starts_with(result)) found.results.push_back(wire::from_hexadecimal(value));
  }
  return found;
}

}  // namespace jaxexp::runtime
