// Artifacts whose modules are stored apart: cutting them out and putting them back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "wire/artifact/opened.h"
#include "wire/artifact/trailer.h"

namespace jaxexp::wire {

/// An image of an artifact with a trailer: the artifact without the bytes of its modules; schema/trailer.fbs has the
/// layout. `Opened` reads it where it lies, given the modules. What follows the artifact in the buffer is left out.
/// The modules are compared with their digests. Throws Error, also where the artifact has no trailer or cannot be put
/// together again.
std::vector<std::uint8_t> cut(std::span<const std::uint8_t> artifact);

/// An image and its modules, as the artifact that they were.
class Joined {
 public:
  /// Keeps views of the buffers. Throws Error.
  Joined(std::span<const std::uint8_t> image, std::span<const Opened::Bytes> modules);

  std::size_t size() const { return size_; }

  /// Writes `size()` bytes: exactly those of the artifact that the image was made from. Throws Error where that is
  /// impossible.
  void write(std::uint8_t* target) const;

 private:
  Opened opened_;
  std::vector<std::uint8_t> metadata_;
  std::size_t size_;
};

/// The artifact with notes as `change` leaves them, which is given its own. Nothing else changes; what follows it in
/// the buffer is left out. Throws Error, also where it has no trailer or notes do not fit it, and TooLarge.
std::vector<std::uint8_t> with_notes(std::span<const std::uint8_t> artifact, const std::function<void(Notes&)>& change);

}  // namespace jaxexp::wire
