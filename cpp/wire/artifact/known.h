// Metadata that was verified before: the versions of a function differ in their modules, and often in nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <span>
#include <utility>

#include "wire/artifact/opened.h"
#include "wire/base/digest.h"

namespace jaxexp::wire {

/// For a read of many artifacts at once, in any number of threads. An artifact with a trailer whose metadata are, byte
/// for byte, those of one that passed every check is not checked again, except for its digests, where its modules are
/// and what its trailer says. Keeps views into the first buffer of each kind.
class Known {
 public:
  struct Metadata {
    std::uint32_t number;                  // counts them from 0
    std::uint32_t root;                    // the offset of the Exported
    std::span<const std::uint8_t> tables;  // behind the head
    std::uint64_t size, without_modules;   // of the artifact that passed
  };

  /// Fills `opened`, as its own constructor does; where there are modules, with an image and these. Returns the
  /// metadata in common with other artifacts; null where they were not kept. Throws Error.
  const Metadata* open(Opened::Bytes buffer, std::span<const Opened::Bytes> modules, std::optional<Opened>& opened);

 private:
  /// Images are smaller than artifacts, so each kind has its own limits.
  using Key = std::pair<bool, Digest>;

  const Metadata* find(const Key& key, const Trailer& trailer) const;
  const Metadata* insert(const Key& key, const Opened& opened);

  mutable std::shared_mutex mutex_;
  std::map<Key, Metadata> metadata_;  // not hashed: the digests are what hostile files say
};

}  // namespace jaxexp::wire
