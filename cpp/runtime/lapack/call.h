// A custom call in the typed form of XLA's FFI, as a handler sees it. What an artifact passes is not trusted: each
// array is compared with the shape that a routine reads or writes.
#pragma once

#include <xla/ffi/api/c_api.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime/lapack/library.h"

namespace jaxexp::runtime::lapack {

/// What a call has that its routine cannot take.
class CallError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class T>
constexpr XLA_FFI_DataType data_type() {
  if constexpr (std::is_same_v<T, float>) return XLA_FFI_DataType_F32;
  if constexpr (std::is_same_v<T, double>) return XLA_FFI_DataType_F64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return XLA_FFI_DataType_C64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return XLA_FFI_DataType_C128;
  if constexpr (std::is_same_v<T, std::int32_t>) return XLA_FFI_DataType_S32;
  if constexpr (std::is_same_v<T, std::uint8_t>) return XLA_FFI_DataType_U8;
  if constexpr (std::is_same_v<T, bool>) return XLA_FFI_DataType_PRED;
}

/// As many arrays of one shape as the batch has, one after the other: matrices of `rows` and `columns`, each column
/// after the other; vectors, of one column; or numbers.
template <class T>
struct Arrays {
  T* data;
  std::int64_t batch, rows, columns;

  std::int64_t size() const { return rows * columns; }  // of one of them
  bool is_empty() const { return batch == 0 || size() == 0; }
  T* operator[](std::int64_t i) const { return data + i * size(); }
  /// The distance of columns, which is never 0.
  Int stride() const { return std::max<std::int64_t>(rows, 1); }

  void fill_with_zeros() const { std::fill_n(data, batch * size(), T{}); }
  /// Copies arrays of the same shape, unless they are these.
  void copy(const Arrays& source) const {
    if (source.batch != batch || source.rows != rows || source.columns != columns)
      throw CallError("a result has another shape than the argument that it replaces");
    if (data != source.data) std::copy_n(source.data, batch * size(), data);
  }
};

class Buffer {
 public:
  Buffer(const XLA_FFI_Buffer* buffer, const char* what, std::int64_t index)
      : buffer_(buffer), what_(what), index_(index) {}

  /// Matrices of any shape, in batches of any rank.
  template <class T>
  Arrays<T> matrices() const {
    check(data_type<T>());
    const auto dims = dimensions();
    if (dims.size() < 2) refuse("a matrix or a batch of them");
    return arrays<T>(dims.size() - 2, dims[dims.size() - 2], dims.back());
  }
  /// Matrices of one shape.
  template <class T>
  Arrays<T> matrices(std::int64_t batch, std::int64_t rows, std::int64_t columns) const {
    const auto found = matrices<T>();
    if (found.batch != batch || found.rows != rows || found.columns != columns)
      refuse(several(batch, "matrices of ") + std::to_string(rows) + " by " + std::to_string(columns));
    return found;
  }
  /// Vectors of any length.
  template <class T>
  Arrays<T> vectors() const {
    check(data_type<T>());
    const auto dims = dimensions();
    if (dims.empty()) refuse("a vector or a batch of them");
    return arrays<T>(dims.size() - 1, dims.back(), 1);
  }
  template <class T>
  Arrays<T> vectors(std::int64_t batch, std::int64_t length) const {
    const auto found = vectors<T>();
    if (found.batch != batch || found.rows != length)
      refuse(several(batch, "vectors of length ") + std::to_string(length));
    return found;
  }
  /// A number for each matrix of a batch.
  template <class T>
  Arrays<T> numbers(std::int64_t batch) const {
    check(data_type<T>());
    const auto found = arrays<T>(dimensions().size(), 1, 1);
    if (found.batch != batch) refuse(several(batch, "numbers"));
    return found;
  }
  template <class T>
  T number() const {
    if (!dimensions().empty()) refuse("a number");
    return *numbers<T>(1).data;
  }

 private:
  std::span<const std::int64_t> dimensions() const { return {buffer_->dims, static_cast<std::size_t>(buffer_->rank)}; }
  template <class T>
  Arrays<T> arrays(std::size_t batch_rank, std::int64_t rows, std::int64_t columns) const {
    std::uint64_t batch = 1;  // which wraps around only where another size is 0
    for (const std::int64_t size : dimensions().first(batch_rank)) batch *= static_cast<std::uint64_t>(size);
    if (std::max(rows, columns) > INT32_MAX) refuse("smaller than 2^31 in each direction");
    return {static_cast<T*>(buffer_->data), static_cast<std::int64_t>(batch), rows, columns};
  }
  static std::string several(std::int64_t batch, const char* what) {
    return "a batch of " + std::to_string(batch) + ' ' + what;
  }
  void check(XLA_FFI_DataType type) const;
  [[noreturn]] void refuse(const std::string& expected) const;

  const XLA_FFI_Buffer* buffer_;
  const char* what_;
  std::int64_t index_;
};

class Call {
 public:
  explicit Call(const XLA_FFI_CallFrame& frame) : frame_(frame) {}

  std::int64_t nr_arguments() const { return frame_.args.size; }
  Buffer argument(std::int64_t i) const;
  Buffer result(std::int64_t i) const;

  /// Attributes. The letters are those that LAPACK takes; others than `allowed` are refused.
  char letter(std::string_view name, std::string_view allowed) const;
  std::int32_t number(std::string_view name) const { return attribute<std::int32_t>(name); }
  bool flag(std::string_view name) const { return attribute<bool>(name); }

 private:
  template <class T>
  T attribute(std::string_view name) const {
    T value;
    std::memcpy(&value, attribute(name, data_type<T>()), sizeof value);
    return value;
  }
  const void* attribute(std::string_view name, XLA_FFI_DataType type) const;

  const XLA_FFI_CallFrame& frame_;
};

/// How many arguments and results a call may have.
struct Most {
  std::int64_t arguments = INT64_MAX, results = INT64_MAX;
};

/// Runs a function that takes a Call, with results that are zeros where they do not share the memory of an argument.
/// Its exceptions become errors of the FFI.
XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame, void (*function)(const Call&), Most most) noexcept;

template <void (*function)(const Call&), Most most = Most{}>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  return handle(frame, function, most);
}

template <class T>
inline constexpr bool is_complex = !std::is_floating_point_v<T>;

/// The real numbers that complex ones are made of; real ones themselves.
template <class T>
struct RealOf {
  using type = T;
};
template <class T>
struct RealOf<std::complex<T>> {
  using type = T;
};
template <class T>
using Real = typename RealOf<T>::type;

/// The first letter of the names of routines for these numbers.
template <class T>
constexpr char letter_of() {
  constexpr bool is_single = sizeof(Real<T>) == sizeof(float);
  return is_complex<T> ? (is_single ? 'c' : 'z') : (is_single ? 's' : 'd');
}

/// An argument that a routine has for real, or for complex numbers only.
struct LeftOut {};
inline constexpr LeftOut left_out;

/// A routine of LAPACK, or of its BLAS, for numbers of type T.
template <class T>
class Routine {
 public:
  /// `name` is without the first letter, as in "getrf".
  explicit Routine(const char* name) : address_(library().find(letter_of<T>() + std::string(name))) {
    if (!address_) throw CallError("the LAPACK " + library().file().string() + " has no " + letter_of<T>() + name);
  }

  /// Calls it. Letters and integers, which Fortran takes by reference, are passed by value here; what is `left_out` is
  /// not passed.
  template <class... Arguments>
  void operator()(Arguments... arguments) const {
    constexpr std::size_t letters = (std::size_t{0} + ... + std::size_t{std::is_same_v<Arguments, char>});
    std::apply([&](auto... pointers) { call(std::make_index_sequence<letters>(), pointers...); },
               std::tuple_cat(references(arguments)...));
  }

  /// The same with one more argument, in which it says how the call ended.
  template <class... Arguments>
  std::int32_t status(Arguments... arguments) const {
    Int info = 0;
    (*this)(arguments..., &info);
    return static_cast<std::int32_t>(info);
  }

 private:
  static std::tuple<char*> references(char& letter) { return {&letter}; }
  static std::tuple<Int*> references(Int& number) { return {&number}; }
  static std::tuple<> references(const LeftOut&) { return {}; }
  template <class Pointed>
  static std::tuple<Pointed*> references(Pointed* pointer) {
    return {pointer};
  }

  /// Behind its arguments, a routine expects the length of each text among them.
  template <std::size_t... letters, class... Pointers>
  void call(std::index_sequence<letters...>, Pointers... pointers) const {
    using Fortran = void(Pointers..., decltype(letters)...);
    reinterpret_cast<Fortran*>(address_)(pointers..., (static_cast<void>(letters), std::size_t{1})...);
  }

  void* address_;
};

template <class T>
using Space = std::unique_ptr<T[]>;

template <class T>
Space<T> space(std::int64_t size) {
  return std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(std::max<std::int64_t>(size, 1)));
}

/// Calls `run(i, work, size)` for each matrix of a batch, which is not empty. A first call, for the first matrix with
/// the size -1, asks the routine how much work space it wants; it gets `least` or more.
template <class T, class Run>
void for_each(std::int64_t batch, const Run& run, Int least = 1) {
  T best{};
  run(std::int64_t{0}, &best, Int{-1});
  // Single precision may have rounded the size down.
  const Real<T> size = std::nextafter(std::real(best), std::numeric_limits<Real<T>>::infinity());
  if (!(size < static_cast<Real<T>>(INT32_MAX))) throw CallError("LAPACK wants too much work space for these matrices");
  const Int taken = std::max(static_cast<Int>(std::ceil(size)), least);
  const auto work = space<T>(taken);
  for (std::int64_t i = 0; i < batch; ++i) run(i, work.get(), taken);
}

/// The work space of real numbers that routines for complex ones want.
template <class T>
class RealWork {
 public:
  explicit RealWork(std::int64_t size) : size_(size), numbers_(space<Real<T>>(is_complex<T> ? size : 0)) {}

  auto get() const { return only_for_complex(numbers_.get()); }
  auto size() const { return only_for_complex(size_); }

 private:
  template <class Argument>
  static auto only_for_complex(Argument argument) {
    if constexpr (is_complex<T>)
      return argument;
    else
      return left_out;
  }

  Int size_;
  Space<Real<T>> numbers_;
};

/// Eigenvalues: complex ones, or real and imaginary parts.
template <class T>
class Eigenvalues {
 public:
  /// `first` is the number of the result, or of the first of two.
  Eigenvalues(const Call& call, std::int64_t first, std::int64_t batch, std::int64_t n)
      : values_(call.result(first).vectors<T>(batch, n)) {
    if constexpr (!is_complex<T>) imaginary_ = call.result(first + 1).vectors<T>(batch, n);
  }

  void fill_with_zeros() const {
    values_.fill_with_zeros();
    if constexpr (!is_complex<T>) imaginary_.fill_with_zeros();
  }
  T* operator[](std::int64_t i) const { return values_[i]; }
  auto imaginary(std::int64_t i) const {
    if constexpr (is_complex<T>)
      return left_out;
    else
      return imaginary_[i];
  }

 private:
  Arrays<T> values_, imaginary_{};
};

template <class T>
Arrays<T> square(const Buffer& buffer) {
  const auto found = buffer.matrices<T>();
  if (found.rows != found.columns) throw CallError("a call of LAPACK must have square matrices here");
  return found;
}

/// The result that a routine overwrites: matrices that are copied there first.
template <class T>
Arrays<T> copied(const Arrays<T>& source, const Buffer& result) {
  const auto found = result.matrices<T>(source.batch, source.rows, source.columns);
  found.copy(source);
  return found;
}

inline constexpr std::int32_t not_finite = -4;  // what LAPACK says of a matrix that it does not accept

/// Whether a matrix has no infinity and no NaN. On some others, algorithms that iterate never end.
template <class T>
bool is_finite(const Arrays<T>& matrices, std::int64_t i) {
  return std::all_of(matrices[i], matrices[i] + matrices.size(), [](const T& number) {
    return std::isfinite(std::real(number)) && std::isfinite(std::imag(number));
  });
}

/// Calls `run` as `for_each` does, for matrices that are finite, and notes what it returns for each of them.
template <class T, class Run>
void for_each_finite(const Arrays<T>& matrices, const Arrays<std::int32_t>& statuses, const Run& run) {
  for_each<T>(matrices.batch, [&](std::int64_t i, T* work, Int size) {
    *statuses[i] = size == -1 || is_finite(matrices, i) ? run(i, work, size) : not_finite;
  });
}

/// What routines say of each matrix; 0 until they do.
inline Arrays<std::int32_t> statuses(const Buffer& result, std::int64_t batch) {
  const auto found = result.numbers<std::int32_t>(batch);
  found.fill_with_zeros();
  return found;
}

}  // namespace jaxexp::runtime::lapack
