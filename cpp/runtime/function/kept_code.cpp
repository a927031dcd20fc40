// Plugins hardly check what they load: all that decides what code does is compared here, and its digest.
#include "runtime/function/kept_code.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "jaxexp/deserialization_error.h"
#include "runtime/plugin/identity.h"
#include "wire/base/error.h"
#include "wire/compiled/append.h"

namespace jaxexp::runtime {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::string_view parameter = "parameter ", result = "result ", digits = "0123456789abcdef";

Bytes bytes_of(std::string_view text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

std::string hexadecimal(Bytes bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) (text += digits[byte >> 4]) += digits[byte & 15];
  return text;
}

std::string from_hexadecimal(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const auto high = digits.find(text[i]), low = digits.find(text[i + 1]);
    if (high == digits.npos || low == digits.npos) break;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

const std::string* value_of(const wire::Entries& entries, std::string_view name) {
  const auto found = std::ranges::find(entries, name, &wire::Entries::value_type::first);
  return found == entries.end() ? nullptr : &found->second;
}

std::string shown(const std::string& value) {
  return value.empty() ? "none" : wire::escaped(wire::shortened(value, 100));
}

/// In what a record differs from what is here; empty where it does not.
std::string difference(const wire::Entries& record, const wire::Entries& here) {
  for (const auto& [name, value] : here) {
    const std::string* const found = value_of(record, name);
    if (!found) return name + ": the code does not say for which it was compiled";
    if (*found != value) return name + ": compiled for " + shown(*found) + ", here it is " + shown(value);
  }
  return {};
}

HloShardings shardings_in(const wire::Entries& call) {
  HloShardings found;
  for (const auto& [name, value] : call) {
    if (name.starts_with(parameter)) found.parameters.push_back(from_hexadecimal(value));
    if (name.starts_with(result)) found.results.push_back(from_hexadecimal(value));
  }
  return found;
}

}  // namespace

wire::Entries conditions(const Client& client, const Device& device, std::string_view name, Bytes module,
                         std::string_view options) {
  wire::Entries entries{{"function", std::string(name)}, {"module", hexadecimal(wire::digest(module))}};
  for (auto& entry : identity(client, device)) entries.push_back(std::move(entry));
  entries.emplace_back("compile options", hexadecimal(bytes_of(options)));  // the devices are among them
  return entries;
}

KeptCode find_code(std::shared_ptr<const Client> client, const wire::FileBytes& file, const wire::Entries& conditions) {
  KeptCode found{std::nullopt, {}, "it has no code of this function"};
  try {
    const wire::ExecutableRecords records = wire::read_executables(file);
    for (auto record = records.records.rbegin(); record != records.records.rend(); ++record) {
      // Records of other functions are no reason.
      const std::string* const function = value_of(record->conditions, "function");
      if (!function || *function != conditions.front().second) continue;
      found.why_not = difference(record->conditions, conditions);
      if (!found.why_not.empty()) continue;
      found.executable.emplace(Executable::from_code(client, wire::read_code(file, *record)));
      found.shardings = shardings_in(record->call);
      return found;
    }
  } catch (const wire::Error& error) {
    found.why_not = "expected " + error.expected + ", found " + error.found;
  } catch (const RunError& error) {
    found.why_not = error.what();
  } catch (const std::system_error& error) {
    found.why_not = error.what();
  }
  return found;
}

void keep_code(const Executable& executable, bool has_shardings, const wire::Entries& conditions,
               const std::filesystem::path& path) {
  wire::Entries call;
  if (has_shardings) {
    const HloShardings shardings = executable.shardings();
    const auto add = [&](std::string_view name, const std::vector<std::string>& protos) {
      for (std::size_t i = 0; i < protos.size(); ++i)
        call.emplace_back(std::string(name) + std::to_string(i), hexadecimal(bytes_of(protos[i])));
    };
    add(parameter, shardings.parameters);
    add(result, shardings.results);
  }
  try {
    wire::append_executable(path, conditions, call, executable.serialize());
  } catch (const wire::Error& error) {
    throw DeserializationError(error.path, error.expected, error.found);
  } catch (const wire::FileIsLocked&) {
    throw RunError(RunError::Reason::argument, path.string() + " is being changed by somebody else at the moment");
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), path.string());
  }
}

}  // namespace jaxexp::runtime
