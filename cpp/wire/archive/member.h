// What an index says of a member, in memory of its own; schema/archive.fbs says what is what.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "archive_generated.h"
#include "wire/archive/text.h"
#include "wire/base/digest.h"

namespace jaxexp::wire {

struct Member {
  struct Place {
    std::uint64_t position = 0;
    std::uint32_t size = 0, crc32 = 0;
    std::uint16_t header = 0;
    bool shared = false, apart = false;
  };

  struct Module {
    std::uint64_t position;
    std::uint32_t size;
    Digest digest;
  };

  /// Enough of a function to choose it; lists have a line for each element.
  struct Summary {
    Text fun_name;
    std::optional<Text> jax_version;
    Text writer, platforms;
    std::uint32_t nr_devices = 0;
    Text arguments;
    std::uint32_t argument_count = 0;
    Text results;
    std::uint32_t result_count = 0;

    bool operator==(const Summary&) const = default;
  };

  Summary summary = {};
  Digest digest = {};
  std::uint32_t size = 0;
  std::optional<Text> metadata = {};
  bool own_metadata = false;
  Place place = {};
  std::vector<Module> modules = {};

  /// The texts of a block, by where they are in it.
  using Texts = std::unordered_map<const flatbuffers::String*, Text>;

  /// Members of one block that are given the same `texts` share theirs.
  static Member of(const schema::Member& table, Texts& texts);
};

}  // namespace jaxexp::wire
