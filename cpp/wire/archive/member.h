// What an index says of a member, in memory of its own; schema/archive.fbs says what is what.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "archive_generated.h"
#include "wire/base/digest.h"

namespace jaxexp::wire {

/// A text that does not change, in memory that its copies share: an index says a text once for all members that have
/// it.
class Text {
 public:
  Text() = default;
  Text(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  Text(const char* text) : Text(std::string(text)) {}

  const std::string& str() const {
    static const std::string empty;
    return text_ ? *text_ : empty;
  }
  operator const std::string&() const { return str(); }
  std::size_t size() const { return str().size(); }

  friend bool operator==(const Text& a, const Text& b) { return a.text_ == b.text_ || a.str() == b.str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

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

/// The folder for what an archive keeps for itself.
inline constexpr std::string_view reserved_folder = ".jaxexp";

/// What is wrong with a name; empty for one that is a relative path on every system: UTF-8, parts between single
/// slashes, none of them "." or "..", no backslashes, no drive, no control characters, nothing that changes the
/// direction of text.
std::string wrong_with_name(std::string_view name);

}  // namespace jaxexp::wire
