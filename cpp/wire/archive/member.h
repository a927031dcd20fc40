// What an index says of a member, in memory of its own; schema/archive.fbs says what is what.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "archive_generated.h"
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
    std::string fun_name;
    std::optional<std::string> jax_version;
    std::string writer, platforms;
    std::uint32_t nr_devices = 0;
    std::string arguments;
    std::uint32_t argument_count = 0;
    std::string results;
    std::uint32_t result_count = 0;
  };

  Summary summary = {};
  Digest digest = {};
  std::uint32_t size = 0;
  std::optional<std::string> metadata = {};
  bool own_metadata = false;
  Place place = {};
  std::vector<Module> modules = {};

  static Member of(const schema::Member& table);
};

}  // namespace jaxexp::wire
