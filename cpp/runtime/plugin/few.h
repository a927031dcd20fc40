// Lists that are mostly short, and then take nothing from the heap.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace jaxexp::runtime {

/// `size` elements, which are in here up to `N`. Pointers and numbers have any value at first.
template <class T, std::size_t N>
class Few {
 public:
  explicit Few(std::size_t size) : more_(size > N ? size : 0), all_(size > N ? more_.data() : few_.data(), size) {}
  Few(const Few&) = delete;
  Few& operator=(const Few&) = delete;

  T& operator[](std::size_t i) { return all_[i]; }
  std::span<T> all() { return all_; }

 private:
  std::array<T, N> few_;
  std::vector<T> more_;
  std::span<T> all_;
};

}  // namespace jaxexp::runtime
