// An artifact, or an image and its modules, that passed every check except the comparison of modules with their
// digests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exported_generated.h"
#include "wire/artifact/trailer.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"
#include "wire/exported/check.h"

namespace jaxexp::wire {

/// Keeps views into the buffers.
class Opened {
 public:
  using Bytes = std::span<const std::uint8_t>;

  /// Where there are modules, the buffer is an image of an artifact that they were cut out of, and there is one for
  /// each function, the primal first. Throws Error.
  explicit Opened(Bytes buffer, std::span<const Bytes> modules = {})
      : Opened(buffer, modules, Trailer::read(buffer, !modules.empty())) {}

  /// The same with a trailer that was read already.
  Opened(Bytes buffer, std::span<const Bytes> modules, std::optional<Trailer> trailer);

  /// For an artifact whose tables are known to pass the checks. Throws Error where trailer or modules do not fit them.
  Opened(const Trailer& trailer, const schema::Exported& root, std::span<const Bytes> modules);

  const schema::Exported& root() const { return *root_; }
  const std::optional<Trailer>& trailer() const { return trailer_; }

  /// Where its tables are, as far as they were looked at.
  const Extent& tables() const { return tables_; }

  /// The module of a function, which was not compared with its digest.
  Bytes module(const schema::Exported& exported, std::size_t order) const {
    if (!modules_.empty()) return modules_[order];
    return {exported.mlir_module_serialized()->Data(), exported.mlir_module_serialized()->size()};
  }

  /// Whether the module of a function was compared with its digest, or has none.
  bool is_module_checked(std::size_t order) const { return !trailer_ || (checked_modules_ & bit(order)) != 0; }

  /// Compares it, unless that was done before. Throws Error.
  void check_module(const schema::Exported& exported, std::size_t order) const;

 private:
  /// The modules of the few functions beyond 64 are compared each time.
  static std::uint64_t bit(std::size_t order) { return order < 64 ? std::uint64_t{1} << order : 0; }

  std::optional<Trailer> trailer_;
  std::vector<Bytes> modules_;  // of an image
  const schema::Exported* root_;
  Extent tables_{};
  mutable std::atomic<std::uint64_t> checked_modules_{0};
};

/// Fetching a smaller artifact as a whole takes no longer than finding out what could be left out.
inline constexpr std::size_t worth_parts = std::size_t{1} << 16;

/// Fetches what opening an artifact or an image looks at, which is all but the modules, where a trailer says what that
/// is; else all of it. Returns whether it was a part only.
bool fetch_all_but_modules(const FileBytes& file, Opened::Bytes buffer, bool image);

/// Whether nothing that was looked at may have been left out.
bool is_in_front_of_modules(const Opened& opened);

/// Calls `open`, which fills `opened` from a buffer, when the buffer has what it looks at. `file` may be null, or
/// another file than the buffer's.
template <class Open>
void open_in(const FileBytes* file, Opened::Bytes buffer, bool image, std::optional<Opened>& opened, const Open& open) {
  if (!file || !file->is_in_parts() || !file->has(buffer)) return open();
  if (fetch_all_but_modules(*file, buffer, image)) {
    try {
      open();
      if (is_in_front_of_modules(*opened)) return;
    } catch (const Error&) {
      // Zeros in the place of modules may be what is wrong: what the error really is, all of the bytes tell.
    }
    opened.reset();
    file->fetch(buffer);
  }
  open();
}

/// For reading many artifacts at once, in any number of threads. Where an artifact has a trailer, and its metadata
/// equal, byte for byte, those of one that passed every check, only its digests, the places of its modules and its
/// trailer are checked. Keeps views of the first buffer with each metadata.
class MetadataCache {
 public:
  struct Metadata {
    std::uint32_t number;                  // counts them from 0
    std::uint32_t root;                    // the offset of the Exported
    std::span<const std::uint8_t> tables;  // behind the head
    std::uint64_t size, without_modules;   // of the artifact that passed
  };

  /// Fills `opened` as its constructor does; where there are modules, the buffer is an image. Returns the metadata that
  /// are kept for other artifacts; null where they are not kept. Throws Error.
  const Metadata* open(Opened::Bytes buffer, std::span<const Opened::Bytes> modules, std::optional<Opened>& opened);

  std::size_t size() const;

 private:
  /// Images are smaller than artifacts, so each kind has its own limits.
  using Key = std::pair<bool, Digest>;

  const Metadata* find(const Key& key, const Trailer& trailer) const;
  const Metadata* insert(const Key& key, const Opened& opened);

  mutable std::shared_mutex mutex_;
  std::map<Key, Metadata> metadata_;  // not hashed: the digests are what hostile files say
};

/// Copies, which stay when the artifact goes.
struct Texts {
  /// A custom node whose data is in a form of jaxexp or of JAX itself.
  struct Node {
    std::string path, name, data;
    std::uint32_t children;
  };

  std::vector<std::pair<std::string, std::string>> metadata;  // the user's, values are JSON
  std::vector<Node> nodes;                                    // of all functions; each once that says the same

  bool empty() const { return metadata.empty() && nodes.empty(); }
};

Texts texts_of(const Opened& opened);

}  // namespace jaxexp::wire
