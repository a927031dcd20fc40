// A LAPACK, whatever it calls its routines and however wide its integers are.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plugin/shared_library.h"

namespace jaxexp::runtime::lapack {

class Library {
 public:
  /// Throws RunError where it is no LAPACK.
  explicit Library(const std::filesystem::path& file);

  /// The address of a routine such as "dgetrf"; null where the library has none.
  void* find(const std::string& routine) const;
  const std::filesystem::path& file() const { return file_; }
  /// Whether integers have 64 bits (ILP64), and not 32 (LP64).
  bool is_wide() const { return is_wide_; }

 private:
  std::filesystem::path file_;
  SharedLibrary library_;
  std::string_view prefix_, suffix_;  // around the names of routines
  bool is_wide_ = false;
};

/// The one that was found in this process, which there has to be.
const Library& library();

/// An integer that a routine takes or sets. In little-endian memory its lower half is what an LP64 library means.
using Int = std::int64_t;

/// Integers of a library that lie side by side.
class Integers {
 public:
  explicit Integers(std::int64_t size) : numbers_(static_cast<std::size_t>(size) + 1) {}

  void* data() { return numbers_.data(); }
  void read(const std::int32_t* source, std::int64_t size) {
    if (!library().is_wide())
      std::memcpy(numbers_.data(), source, static_cast<std::size_t>(size) * sizeof *source);
    else
      for (std::int64_t i = 0; i < size; ++i) numbers_[static_cast<std::size_t>(i)] = source[i];
  }
  void write(std::int32_t* target, std::int64_t size) const {
    if (!library().is_wide())
      std::memcpy(target, numbers_.data(), static_cast<std::size_t>(size) * sizeof *target);
    else
      for (std::int64_t i = 0; i < size; ++i)
        target[i] = static_cast<std::int32_t>(numbers_[static_cast<std::size_t>(i)]);
  }

 private:
  std::vector<Int> numbers_;
};

}  // namespace jaxexp::runtime::lapack
