// A folder of executables that processes share: one file for each set of conditions, made by whoever compiles first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "wire/compiled/records.h"

namespace jaxexp::wire {

class WrittenFile;

/// Whether every user of the machine may add files to a folder, or replace them. False where there is none.
bool everybody_may_write(const std::filesystem::path& folder);

/// Whether a folder belongs to somebody else than this process's user and the system's administrator.
bool is_of_another_user(const std::filesystem::path& folder);

/// The module's SHA-256 has to be among the conditions: whoever can choose a module must not choose code for another.
/// Methods may be called by several threads and processes at once.
class Store {
 public:
  /// Makes the folder where it is missing, for this user only. It stays this one wherever the process goes. Throws
  /// std::system_error.
  Store(const std::filesystem::path& folder, std::uint64_t max_bytes);

  struct Entry {
    Entries call;
    std::vector<std::uint8_t> code;
  };

  /// The file's name, which depends on the conditions only.
  static std::string name(const Entries& conditions);

  /// The code for these conditions; nothing where there is none. Throws Error where the file is damaged, and
  /// std::system_error where it cannot be read.
  std::optional<Entry> find(const Entries& conditions) const;

  /// Adds an entry, in place of one that is there, and removes those that were not used for longest while there are
  /// more bytes than there may be. Whether there is room for it. If the process dies meanwhile, the folder has the
  /// entries that it had. Throws Error and std::system_error.
  bool put(const Entries& conditions, const Entries& call, std::span<const std::uint8_t> code) const;

  /// Removes an entry whose code cannot be used.
  void remove(const Entries& conditions) const;

  /// The right to compile what others would compile too: they wait. It ends with this object, or with the process.
  class Turn {
   public:
    explicit Turn(std::unique_ptr<const WrittenFile> file);
    Turn(Turn&&) noexcept;
    ~Turn();

   private:
    std::unique_ptr<const WrittenFile> file_;  // none in a folder where nothing can be locked: nobody waits there
  };

  /// Nothing where somebody else has the turn.
  std::optional<Turn> turn(const Entries& conditions) const;

 private:
  void clean(const std::filesystem::path& keep) const;

  std::filesystem::path folder_;
  std::uint64_t max_bytes_;
};

}  // namespace jaxexp::wire
