// The index of an archive, read where it lies: its blocks are checked when they are first needed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "archive_generated.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::wire {

class ArchiveIndex {
 public:
  /// `index` are its bytes, at a multiple of eight, and `root` is the root in them, or a copy of it; `end` is where the
  /// index begins in the file. Checks the root, which takes as long as hashing some 50 bytes for every 64 members; the
  /// rest is not touched. Throws Error. Where `file` is given, the index is a part of it, and each block is fetched
  /// before it is looked at.
  ArchiveIndex(std::span<const std::uint8_t> index, std::span<const std::uint8_t> root, const Digest& root_digest,
               std::uint64_t end, const FileBytes* file = nullptr);

  std::uint32_t size() const { return root_->member_count(); }
  std::string_view writer() const { return root_->writer()->string_view(); }

  /// The number of a member. Throws Error where a block on the way to it is damaged.
  std::optional<std::uint32_t> find(std::string_view name) const;

  /// A member whose block has been checked: names, sizes and places are what they have to be. Throws Error.
  const schema::Member& member(std::uint32_t number) const;

  /// The members of the ZIP file, but for the index. Throws Error.
  std::vector<ZipMember> files() const;

  /// The header of a member that owns its bytes. Throws Error where `header`, which is in front of them, is another.
  void check_header(std::uint32_t number, std::span<const std::uint8_t> header) const;

  /// The weights in the archive, which have been checked; null where there are none. Throws Error.
  const schema::ArchiveWeights* weights() const;

  /// All blocks, and that no name is both a member's and a folder's. Throws Error.
  void check_names() const;

  /// The same, the weights, and that no two members share bytes unless they say so. Throws Error.
  void check() const;

 private:
  const schema::Block& block(std::uint32_t number) const;
  const schema::Block& check_block(std::uint32_t number) const;
  /// Returns how many bytes its texts have.
  std::size_t check_member(const schema::Member& member, std::string_view previous, std::uint32_t number) const;
  void check_places() const;
  /// The bytes of a part, as they were written.
  std::span<const std::uint8_t> part(std::uint32_t position, std::uint32_t size, const Digest& expected,
                                     const Path& path) const;
  std::uint32_t block_of(std::uint32_t member) const;
  std::uint32_t first_member(std::uint32_t block) const;
  std::string_view first_name(std::uint32_t block) const;

  std::span<const std::uint8_t> index_;
  std::uint64_t end_;
  const FileBytes* file_;
  const schema::Index* root_;
  std::unique_ptr<std::atomic<bool>[]> checked_;  // blocks
  mutable std::atomic<bool> names_checked_ = false, all_checked_ = false, weights_checked_ = false;
};

}  // namespace jaxexp::wire
