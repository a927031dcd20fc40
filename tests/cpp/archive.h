// Whole archives, made by the codec's own writer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wire/archive/end.h"
#include "wire/archive/records.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::tests {

/// An archive's file: a section of members, and behind it a section for each append.
class Archive {
 public:
  using Bytes = std::vector<std::uint8_t>;

  /// Adds a section that is complete, or what earlier versions wrote, which had no sections. Throws wire::Error where
  /// an artifact is none.
  void append(const std::vector<std::pair<std::string, Bytes>>& artifacts, bool in_section = true);

  const Bytes& bytes() const { return bytes_; }

 private:
  wire::Member member(const Bytes& artifact, std::size_t header) const;

  Bytes bytes_;
  wire::ArchiveRecords records_;
};

/// The last complete archive in a file that is read in parts, and its index.
wire::FoundEnd end_of(const wire::FileBytes& file);
wire::ArchiveIndex index_of(const wire::FileBytes& file, const wire::FoundEnd& found);

/// Makes the heads of sections right again, as far as they lead: each says what it says, and has the digests for it.
void seal_sections(std::vector<std::uint8_t>& file);

}  // namespace jaxexp::tests
