// Plugins hardly check what they load: all that decides what code does is compared here, and its digest.
#include "runtime/function/kept_code.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "jaxexp/deserialization_error.h"
#include "runtime/function/kept_record.h"
#include "wire/base/error.h"
#include "wire/base/text.h"

namespace jaxexp::runtime {
namespace {

std::string sentence(const wire::Error& error) { return "expected " + error.expected + ", found " + error.found; }

/// Nothing for code that has no shardings.
wire::Entries call_of(const Executable& executable, bool has_shardings) {
  return has_shardings ? call_entries(executable.shardings()) : wire::Entries{};
}

/// The code of a record that fits; where it cannot be used, says why.
std::optional<Executable> load(const std::shared_ptr<const Client>& client, const wire::FileBytes& file,
                               const wire::ExecutableRecord& record, std::string& why_not) {
  try {
    return Executable::from_code(client, wire::read_code(file, record));
  } catch (const wire::Error& error) {
    why_not = sentence(error);
  } catch (const RunError& error) {
    why_not = error.what();
  }
  return std::nullopt;
}

/// The code of an entry; where there is none, or none that can be used, says why.
KeptCode find_entry(const std::shared_ptr<const Client>& client, const wire::Store& store,
                    const wire::Entries& conditions) {
  KeptCode found{std::nullopt, {}, "the compile cache has no code of it"};
  try {
    const auto entry = store.find(conditions);
    if (!entry) return found;
    found.executable = Executable::from_code(client, entry->code);
    found.shardings = shardings_in(entry->call);
  } catch (const wire::Error& error) {
    found.why_not = sentence(error);
  } catch (const RunError& error) {
    found.why_not = error.what();
    store.remove(conditions);
  } catch (const std::system_error& error) {
    found.why_not = error.what();
  }
  return found;
}

}  // namespace

KeptCode find_code(std::shared_ptr<const Client> client, const wire::FileBytes& file, const wire::Entries& conditions) {
  KeptCode found{std::nullopt, {}, "it has no code of this function"};
  bool is_explained = false;
  try {
    const wire::ExecutableRecords records = wire::read_executables(file);
    if (const std::uint64_t unfinished = file.bytes().size() - records.end; unfinished != 0)
      found.why_not += ", and it ends with " + std::to_string(unfinished) + (unfinished == 1 ? " byte" : " bytes") +
                       " of a record that was not finished: the file was cut, or is being written";
    for (auto record = records.records.rbegin(); record != records.records.rend(); ++record) {
      // Records of other functions are no reason.
      const std::string* const function = value_of(record->conditions, "function");
      if (!function || *function != conditions.front().second) continue;
      if (!value_of(record->conditions, "plugin")) {
        if (!is_explained)
          found.why_not =
              "its code of this function is for calls in JAX; save_executable writes code for calls without JAX";
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
    found.why_not = sentence(error);
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
  const wire::Entries call = call_of(executable, has_shardings);
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

std::shared_ptr<const wire::Store> store_in(const std::filesystem::path& folder, std::uint64_t max_bytes,
                                            const Client& client) {
  if (wire::everybody_may_write(folder))
    throw RunError(RunError::Reason::argument,
                   wire::escaped(folder.string()) +
                       ": every user of this machine may write to this folder, and a compile cache "
                       "has native code: choose another one, or take that permission away");
  if (wire::is_of_another_user(folder))
    client.say(wire::escaped(folder.string()) +
               ": this folder belongs to another user, whose programs this process may run");
  try {
    return std::make_shared<const wire::Store>(folder, max_bytes);
  } catch (const std::system_error& error) {
    throw wire::file_error(error.code(), folder);
  }
}

KeptCode find_stored_code(std::shared_ptr<const Client> client, const wire::Store& store,
                          const wire::Entries& conditions, std::optional<wire::Store::Turn>& turn) {
  using std::chrono::steady_clock;
  constexpr std::chrono::minutes patience(10);
  const auto start = steady_clock::now();
  for (;;) {
    KeptCode found = find_entry(client, store, conditions);
    // Whoever has the turn looks again: another process may have compiled meanwhile.
    if (found.executable || turn || steady_clock::now() - start > patience) return found;
    if (auto own = store.turn(conditions))
      turn.emplace(std::move(*own));
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string store_code(const Executable& executable, bool has_shardings, const wire::Entries& conditions,
                       const wire::Store& store) {
  try {
    const auto code = executable.serialize();
    return store.put(conditions, call_of(executable, has_shardings), code) ? std::string() : "it is too large";
  } catch (const wire::Error& error) {
    return sentence(error);
  } catch (const std::exception& error) {  // of the plugin, or of the system
    return error.what();
  }
}

}  // namespace jaxexp::runtime
