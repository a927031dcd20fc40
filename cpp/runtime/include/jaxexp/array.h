// What functions take and return.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "jaxexp/run_error.h"

namespace jaxexp {

namespace runtime {
struct Numbers;
}

/// The dtype of a type of C++, as JAX names it. bfloat16, float8s and numbers of less than a byte have no such type.
template <class T>
constexpr std::string_view dtype_of() {
  if constexpr (std::is_same_v<T, bool>)
    return "bool";
  else if constexpr (std::is_same_v<T, float>)
    return "float32";
  else if constexpr (std::is_same_v<T, double>)
    return "float64";
  else if constexpr (std::is_same_v<T, std::complex<float>>)
    return "complex64";
  else if constexpr (std::is_same_v<T, std::complex<double>>)
    return "complex128";
  else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>)
    return sizeof(T) == 1 ? "int8" : sizeof(T) == 2 ? "int16" : sizeof(T) == 4 ? "int32" : "int64";
  else if constexpr (std::is_integral_v<T>)
    return sizeof(T) == 1 ? "uint8" : sizeof(T) == 2 ? "uint16" : sizeof(T) == 4 ? "uint32" : "uint64";
  else
    static_assert(!sizeof(T), "this type has no dtype: name the dtype, and give the numbers as bytes");
}

/// Numbers in host memory or on devices: row-major without gaps in host memory, where numbers of less than a byte have
/// a byte each. PRNG keys are arrays of uint32 with one dimension more. A copy of an Array is the same array. Several
/// threads may use one.
class Array {
 public:
  /// Numbers of the caller's, which have to stay where and what they are until the array is gone, or has been put on a
  /// device (Runtime::put). Throws RunError for an unknown dtype, or a shape that is none.
  Array(std::string_view dtype, std::vector<std::int64_t> shape, const void* data);

  /// Numbers that `data` keeps, such as a mapped file: a plugin for the CPU uses them where they are. They must not
  /// change any more. Throws RunError.
  Array(std::string_view dtype, std::vector<std::int64_t> shape, std::shared_ptr<const void> data);

  /// Numbers that the array owns. Throws RunError, also where there are not as many as the shape says.
  template <class T>
  Array(std::vector<std::int64_t> shape, std::vector<T> numbers)
      : Array(std::move(shape), std::make_shared<const std::vector<T>>(std::move(numbers))) {
    static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> holds bits: give dtype, shape and bytes");
  }

  /// A scalar. Throws RunError.
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  explicit Array(T number) : Array(dtype_of<T>(), {}, std::make_shared<const T>(number)) {}

  std::string_view dtype() const;
  const std::vector<std::int64_t>& shape() const;
  std::size_t size() const;        // how many numbers
  std::size_t size_bytes() const;  // in host memory
  bool is_on_device() const;
  /// As in "float32[2, 3]".
  std::string str() const;

  /// Waits until the numbers are computed. Throws RunError where that failed.
  void wait() const;

  /// Waits for the numbers, and copies them to host memory of `size_bytes()`. Throws RunError.
  void copy_to(void* target) const;

  /// The same, to a vector. Throws RunError, also where the dtype is another.
  template <class T>
  std::vector<T> to() const {
    static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> holds bits: copy_to bytes");
    check_dtype(dtype_of<T>());
    std::vector<T> numbers(size());
    copy_to(numbers.data());
    return numbers;
  }

 private:
  friend class Function;
  friend class Runtime;
  explicit Array(std::shared_ptr<const runtime::Numbers> numbers) : numbers_(std::move(numbers)) {}
  Array(std::string_view dtype, std::vector<std::int64_t> shape, std::shared_ptr<const void> data, std::size_t size);

  template <class T>
  Array(std::vector<std::int64_t> shape, const std::shared_ptr<const std::vector<T>>& numbers)
      : Array(dtype_of<T>(), std::move(shape), std::shared_ptr<const void>(numbers, numbers->data()),
              numbers->size() * sizeof(T)) {}
  void check_dtype(std::string_view dtype) const;

  std::shared_ptr<const runtime::Numbers> numbers_;
};

}  // namespace jaxexp
