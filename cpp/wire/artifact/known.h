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

/// For reading many artifacts at once, in any number of threads. Where an artifact has a trailer, and its metadata
/// equal, byte for byte, those of one that passed every check, only its digests, the places of its modules and its
/// trailer are checked. Keeps views of the first buffer with each metadata.
class Known {
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

  /// How many metadata are kept.
  std::size_t size() const;

 private:
  /// Images are smaller than artifacts, so each kind has its own limits.
  using Key = std::pair<bool, Digest>;

  const Metadata* find(const Key& key, const Trailer& trailer) const;
  const Metadata* insert(const Key& key, const Opened& opened);

  mutable std::shared_mutex mutex_;
  std::map<Key, Metadata> metadata_;  // not hashed: the digests are what hostile files say
};

}  // namespace jaxexp::wire
