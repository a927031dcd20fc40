// The index of an archive, read where it lies: its blocks are checked when they are first needed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "archive_generated.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"

namespace jaxexp::wire {

class ArchiveIndex {
 public:
  /// Bytes of the file in memory, from a position on.
  struct Part {
    std::uint64_t position;
    std::span<const std::uint8_t> bytes;
  };

  /// Makes bytes in memory what the file has there.
  using Fetch = std::function<void(std::span<const std::uint8_t>)>;

  /// `index` are its bytes, at a multiple of eight, and `root` is the root in them, or a copy of it; `end` is where the
  /// index begins in the file. Checks the root, which takes as long as hashing some 60 bytes for every 64 members; the
  /// rest is not touched. Throws Error. `fetch` may be empty; otherwise it is called with each block before the block
  /// is looked at, in any thread.
  ArchiveIndex(std::span<const std::uint8_t> index, std::span<const std::uint8_t> root, const Digest& root_digest,
               std::uint64_t end, Fetch fetch = {});

  /// The same for an index of `size` bytes that may refer to earlier ones. `parts` of the file ascend; the multiples of
  /// eight among their positions are multiples of eight in memory.
  ArchiveIndex(std::vector<Part> parts, std::span<const std::uint8_t> root, const Digest& root_digest,
               std::uint64_t end, std::uint64_t size, Fetch fetch = {});

  std::uint32_t size() const { return size_; }
  std::string_view writer() const { return root_->writer()->string_view(); }

  /// Whether it is that of an append which wrote only what it changed.
  bool is_of_changes() const { return root_->moved() != nullptr; }

  /// The number of a member. Throws Error where a block on the way to it is damaged.
  std::optional<std::uint32_t> find(std::string_view name) const;

  /// The number of the first member whose name is not less. Throws Error likewise.
  std::uint32_t lower_bound(std::string_view name) const;

  /// A member whose block has been checked: names, sizes and places are what they have to be. Throws Error.
  const schema::Member& member(std::uint32_t number) const;

  /// What the ZIP file's directory lists, but for the index: all members, or of an index of changes those of the last
  /// section, which begins at a position. Throws Error.
  std::vector<ZipMember> files(std::uint64_t section) const;

  /// The header of a member that owns its bytes. Throws Error where `header`, which is in front of them, is another.
  void check_header(std::uint32_t number, std::span<const std::uint8_t> header) const;

  /// The weights in the archive, which have been checked; null where there are none. Throws Error.
  const schema::ArchiveWeights* weights() const;

  /// All blocks, and that no name is both a member's and a folder's. Throws Error.
  void check_names() const;

  /// The latter among the names between two numbers. Throws Error.
  void check_names(std::uint32_t first, std::uint32_t end) const;

  /// The same, the weights, and that no two members share bytes unless they say so. Throws Error.
  void check() const;

  /// For whoever writes the next index, or has to fetch this one: its blocks by number.
  struct BlockPlace {
    Digest digest;
    std::uint64_t position;  // in the file
    std::uint32_t size, member_count;
    std::string_view first_name;
  };

  std::uint32_t block_count() const { return block_count_; }
  BlockPlace block_place(std::uint32_t block) const;
  /// The block in which a name is, or would be; there has to be one.
  std::uint32_t block_of(std::string_view name) const;
  std::uint32_t block_of(std::uint32_t member) const;
  std::uint32_t first_member(std::uint32_t block) const;
  std::string_view first_name(std::uint32_t block) const;
  /// Where the weights are in the file; empty where there are none.
  schema::FilePartPlace weights_place() const;
  /// Where its blocks and weights are, for an index that is not in memory yet. The sizes of blocks are within that of
  /// the file. Throws Error.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> part_places() const;

 private:
  /// A block, as BlockPlace and MovedBlock have it; its position is in the file.
  struct Listed {
    schema::Digest digest;
    std::uint64_t position;
    std::uint32_t size, first_member, name_position, name_size;
  };

  Listed listed(std::uint32_t block) const;
  std::span<const std::uint8_t> at(std::uint64_t position, std::uint64_t size, const Path& path) const;
  void check_within(std::uint64_t position, std::uint64_t size, const Path& path) const;
  const schema::Block& block(std::uint32_t number) const;
  const schema::Block& check_block(std::uint32_t number) const;
  /// Returns how many bytes its texts have.
  std::size_t check_member(const schema::Member& member, std::string_view previous, std::uint32_t number) const;
  void check_places() const;
  /// The bytes of a part, as they were written.
  std::span<const std::uint8_t> part(std::uint64_t position, std::uint32_t size, const Digest& expected,
                                     const Path& path) const;

  std::vector<Part> parts_;
  std::uint64_t end_, limit_;  // where the index begins and ends in the file
  Fetch fetch_;
  const schema::Index* root_;
  std::uint32_t size_ = 0, block_count_ = 0;
  std::unique_ptr<std::atomic<bool>[]> checked_;  // blocks
  mutable std::atomic<std::uint64_t> checked_bytes_ = 0;
  mutable std::atomic<bool> names_checked_ = false, all_checked_ = false, weights_checked_ = false;
};

/// The memory of an index of changes whose file is not in memory, or not at a multiple of eight.
class IndexParts {
 public:
  using Places = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // positions and sizes
  /// Calls a function with the bytes of each place, in this order.
  using Fetch = std::function<void(const Places&, const std::function<void(std::span<const std::uint8_t>)>&)>;

  /// Fetches the blocks and the weights of an index with such a root. Throws Error, and what `fetch` throws.
  void read(const Fetch& fetch, std::span<const std::uint8_t> root, const Digest& root_digest, std::uint64_t end,
            std::uint64_t size);

  /// For ArchiveIndex.
  std::vector<ArchiveIndex::Part> parts() const;

 private:
  struct Piece {
    std::uint64_t position;
    std::size_t size;
    std::vector<std::uint64_t> words;  // from the multiple of eight on that is not behind the position
  };
  std::vector<Piece> pieces_;
};

}  // namespace jaxexp::wire
