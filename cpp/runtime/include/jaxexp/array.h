// What functions take and return.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "jaxexp/run_error.h"

struct DLManagedTensor;  // of dlpack.h
struct DLManagedTensorVersioned;

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

  /// Numbers of another library, in host memory. They are used where they are, as with a shared pointer, if they are
  /// row-major without gaps, and else copied. The array calls the tensor's deleter when nothing needs them any more.
  /// They must not change while it is there. Throws RunError where a tensor cannot be taken; it is still the caller's
  /// then.
  static Array from_dlpack(DLManagedTensorVersioned* tensor);
  static Array from_dlpack(DLManagedTensor* tensor);

  /// A scalar. Throws RunError.
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  explicit Array(T number) : Array(dtype_of<T>(), {}, std::make_shared<const T>(number)) {}

  std::string_view dtype() const;
  const std::vector<std::int64_t>& shape() const;
  std::size_t size() const;        // how many numbers
  std::size_t size_bytes() const;  // in host memory
  bool is_on_device() const;
  /// As in "float32[2,3]".
  std::string str() const;

  /// Waits until the numbers are computed. Throws RunError where that failed.
  void wait() const;
  /// Whether `wait` would not take time.
  bool is_ready() const;
  /// Calls back once the numbers are computed, with null, or with the error that `wait` would throw: at once in this
  /// thread, or later in one of the plugin's, which should not be kept. `done` must not throw. Throws RunError.
  void on_ready(std::function<void(const RunError* error)> done) const;

  /// Waits for the numbers, and returns where they are in host memory, for as long as a copy of this array is there.
  ///
  /// Numbers on a CPU device are not copied, and no call donates them from then on. Those on other devices, in parts on
  /// several ones, or of less than a byte, are copied once, and the copy is kept. Throws RunError.
  const void* data() const;

  /// The same, for a dtype that C++ has. Throws RunError, also where the dtype is another.
  template <class T>
  std::span<const T> view() const {
    check_dtype(dtype_of<T>());
    return {static_cast<const T*>(data()), size()};
  }

  /// Waits for the numbers, and copies them to host memory of `size_bytes()`. Throws RunError.
  void copy_to(void* target) const;

  /// The numbers for another library, which only reads them, and calls the deleter in the end. Waits for them. On a
  /// CPU, CUDA or ROCm device they are used where they are; what `data` would copy is its copy in host memory. Throws
  /// RunError.
  DLManagedTensorVersioned* to_dlpack() const;
  /// The same for libraries that know DLPack before 1.0, which cannot say that it is only to be read. Throws RunError,
  /// also for numbers of less than a byte.
  DLManagedTensor* to_unversioned_dlpack() const;

  /// Copies the numbers, as `copy_to`, to a vector. Throws RunError, also where the dtype is another.
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
