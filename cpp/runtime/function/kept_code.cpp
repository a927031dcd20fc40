// Plugins hardly check what they load: all that decides what code does is compared here, and its digest.
#include "runtime/function/kept_code.h"

#include <system_error>
#include <utility>

#include "jaxexp/deserialization_error.h"
#include "runtime/function/kept_record.h"
#include "wire/base/error.h"
#include "wire/base/file_error.h"
#include "wire/compiled/append.h"

namespace jaxexp::runtime {
namespace {

/// The code of a record that fits; where it cannot be used, says why.
std::optional<Executable> load(const std::shared_ptr<const Client>& client, const wire::FileBytes& file,
                               const wire::ExecutableRecord& record, std::string& why_not) {
  try {
    return Executable::from_code(client, wire::read_code(file, record));
  } catch (const wire::Error& error) {
    why_not = "expected " + error.expected + ", found " + error.found;
  } catch (const RunError& error) {
    why_not = error.what();
  }
  return std::nullopt;
}

}  // namespace

KeptCode find_code(std::shared_ptr<const Client> client, const wire::FileBytes& file, const wire::Entries& conditions) {
  KeptCode found{std::nullopt, {}, "it has no code of this function"};
  bool is_explained = false;
  try {
    const wire::ExecutableRecords records = wire::read_executables(file);
    for (auto record = records.records.rbegin(); record != records.records.rend(); ++record) {
      // Records of other functions are no reason.
      const std::string* const function = value_of(record->conditions, "function");
      if (!function || *function != conditions.front().second) continue;
      if (!value_of(record->conditions, "plugin")) {
        if (!is_explained) found.why_not = "JAX compiled its code of this function, which only Python can use";
        continue;
      }
      const std::string* const module = value_of(record->conditions, "module");
      if (module && *module != *value_of(conditions, "module")) {
        if (!is_explained)
          found.why_not = "its code is for another module of this name: another function, or this one exported again";
        continue;
      }
      const std::string *const sizes = value_of(record->conditions, "sizes"), *const wanted =
                                                                                  value_of(conditions, "sizes");
      if (sizes && wanted && *sizes != *wanted) {
        if (!is_explained) found.why_not = "it has code of this function for " + *sizes + ", and not for " + *wanted;
        continue;
      }
      const std::string why_not = difference(record->conditions, conditions);
      if (!why_not.empty()) {
        if (!std::exchange(is_explained, true)) found.why_not = why_not;  // of the newest
        continue;
      }
      is_explained = true;
      found.executable = load(client, file, *record, found.why_not);
      if (!found.executable) continue;
      found.shardings = shardings_in(record->call);
      return found;
    }
  } catch (const wire::Error& error) {
    found.why_not = "expected " + error.expected + ", found " + error.found;
  } catch (const std::system_error& error) {
    found.why_not = error.what();
  }
  return found;
}

bool has_code(const std::filesystem::path& path, const wire::Entries& conditions) {
  try {
    const wire::FileBytes file(path, wire::FileBytes::Reading::in_parts, ~std::uint64_t{0});
    const wire::ExecutableRecords records = wire::read_executables(file);
    for (auto record = records.records.rbegin(); record != records.records.rend(); ++record)
      if (record->conditions == conditions) return wire::read_code(file, *record).size() == record->size;
  } catch (const wire::Error&) {  // what is added says so, or takes its place
  } catch (const std::system_error&) {
  }
  return false;
}

void keep_code(const Executable& executable, bool has_shardings, const wire::Entries& conditions,
               const std::filesystem::path& path) {
  const wire::Entries call = has_shardings ? call_entries(executable.shardings()) : wire::Entries{};
  try {
    wire::append_executable(path, conditions, call, executable.serialize());
  } catch (const wire::Error& error) {
    throw DeserializationError(error.path, error.expected, error.found).in_file(path.string(), "executables");
  } catch (const wire::FileIsLocked&) {
    throw RunError(RunError::Reason::argument, path.string() + " is being changed by another writer; try again later");
  } catch (const std::system_error& error) {
    throw wire::file_error(error.code(), path);
  }
}

}  // namespace jaxexp::runtime
