// Routines of Fortran, and the work space that they take.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime/lapack/call.h"
#include "runtime/lapack/library.h"

namespace jaxexp::runtime::lapack {

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

/// A routine of LAPACK, or of its BLAS, for numbers of type T.
template <class T>
class Routine {
 public:
  /// `name` is without the first letter, as in "getrf".
  explicit Routine(const char* name) : address_(library().find(letter_of<T>() + std::string(name))) {
    if (!address_) throw CallError("the LAPACK " + library().file().string() + " has no " + letter_of<T>() + name);
  }

  /// Calls it. Letters and integers, which Fortran takes by reference, are passed by value here.
  template <class... Arguments>
  void operator()(Arguments... arguments) const {
    call(std::make_index_sequence<(std::size_t{0} + ... + std::size_t{std::is_same_v<Arguments, char>})>(),
         reference(arguments)...);
  }

 private:
  static char* reference(char& letter) { return &letter; }
  static Int* reference(Int& number) { return &number; }
  template <class Pointed>
  static Pointed* reference(Pointed* pointer) {
    return pointer;
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

/// Matrices that have to be square.
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

/// What routines say of each matrix; 0 until they do.
inline Arrays<std::int32_t> statuses(const Buffer& result, std::int64_t batch) {
  const auto found = result.numbers<std::int32_t>(batch);
  found.fill_with_zeros();
  return found;
}

}  // namespace jaxexp::runtime::lapack
