// A member of an archive that is being written, in little memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "wire/archive/member.h"
#include "wire/base/digest.h"

namespace jaxexp::wire {

/// Summaries, of which there are few different ones.
class Summaries {
 public:
  using Shared = std::shared_ptr<const Member::Summary>;
  Shared shared(const Member::Summary& summary);

 private:
  std::unordered_multimap<std::size_t, Shared> known_;
};

/// A name and a Member in one piece of memory.
class Record {
 public:
  struct Deleter {
    void operator()(Record* record) const;
  };
  using Owner = std::unique_ptr<Record, Deleter>;

  static Owner make(std::string_view name, const Member& member, Summaries& summaries);

  std::string_view name() const { return {text(), name_size_}; }
  std::span<const Member::Module> modules() const { return {module(), module_count_}; }
  std::optional<std::string_view> metadata() const {
    if (long_metadata_) return long_metadata_->str();
    return has_metadata_ ? std::optional(std::string_view(text() + name_size_, metadata_size_)) : std::nullopt;
  }
  Member member() const;

  const Summaries::Shared summary;
  const Digest digest;
  const Member::Place place;
  const std::uint32_t size;
  const bool own_metadata;

 private:
  Record(std::string_view name, const Member& member, Summaries::Shared summary);

  // What follows in memory: modules, then the name, then metadata unless members may share them.
  Member::Module* module() { return reinterpret_cast<Member::Module*>(this + 1); }
  const Member::Module* module() const { return reinterpret_cast<const Member::Module*>(this + 1); }
  const char* text() const { return reinterpret_cast<const char*>(module() + module_count_); }

  std::unique_ptr<const Text> long_metadata_;
  const std::uint32_t name_size_, module_count_;
  const std::uint16_t metadata_size_;
  const bool has_metadata_;
};

}  // namespace jaxexp::wire
