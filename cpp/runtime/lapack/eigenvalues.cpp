// Eigenvalues and Schur forms.
#include <algorithm>

#include "runtime/lapack/table.h"

namespace jaxexp::runtime::lapack {
namespace {

/// Of symmetric, or Hermitian, matrices.
template <class T>
void syevd(char mode, char uplo, const Buffer& matrix, const Call& call) {
  const auto a = copied(square<T>(matrix), call.result(0));
  const Int n = a.rows;
  const auto values = call.result(1).vectors<Real<T>>(a.batch, n);
  const auto status = statuses(call.result(2), a.batch);
  if (a.is_empty()) return;
  static const Routine<T> routine(is_complex<T> ? "heevd" : "syevd");
  const Int integers_size = mode == 'V' ? 3 + 5 * n : 1;
  Integers integers(integers_size);
  const Int real_size = mode == 'V' ? 1 + 5 * n + 2 * n * n : n;
  [[maybe_unused]] Space<Real<T>> real_work;
  if constexpr (is_complex<T>) real_work = space<Real<T>>(real_size);
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0;
    if constexpr (is_complex<T>)
      routine(mode, uplo, n, a[i], n, values[i], work, size, real_work.get(), real_size, integers.data(), integers_size,
              &info);
    else
      routine(mode, uplo, n, a[i], n, values[i], work, size, integers.data(), integers_size, &info);
    *status[i] = static_cast<std::int32_t>(info);
  });
}

template <class T>
void typed_syevd(const Call& call) {
  syevd<T>(call.letter("mode", "NV"), call.letter("uplo", "LU"), call.argument(0), call);
}

template <class T>
void untyped_syevd(const Call& call) {
  const bool is_lower = call.argument(0).number<std::int32_t>() != 0;
  syevd<T>('V', is_lower ? 'L' : 'U', call.argument(3), call);
}

/// Complex vectors of a real matrix: a pair of conjugate eigenvalues has a column of real and one of imaginary parts.
template <class T>
void unpack(const T* packed, const T* imaginary, std::int64_t n, std::complex<T>* vectors) {
  for (std::int64_t j = 0; j < n; ++j, packed += n, vectors += n) {
    if (imaginary[j] == 0 || j + 1 == n) {
      std::copy_n(packed, n, vectors);
      continue;
    }
    for (std::int64_t k = 0; k < n; ++k) {
      vectors[k] = {packed[k], packed[n + k]};
      vectors[n + k] = std::conj(vectors[k]);
    }
    ++j, packed += n, vectors += n;
  }
}

/// Of any square matrices. The first of the results is `first`: real and imaginary parts of the values, or complex
/// values; then left and right vectors.
template <class T>
void geev(char left, char right, const Buffer& matrix, const Call& call, std::int64_t first) {
  using Complex = std::complex<Real<T>>;
  const auto a = square<T>(matrix);
  const Int n = a.rows;
  std::int64_t next = first;
  const auto values = call.result(next++).vectors<T>(a.batch, n);
  [[maybe_unused]] Arrays<T> imaginary{};
  if constexpr (!is_complex<T>) imaginary = call.result(next++).vectors<T>(a.batch, n);
  const auto lefts = call.result(next++).matrices<Complex>(a.batch, n, n);
  const auto rights = call.result(next++).matrices<Complex>(a.batch, n, n);
  const auto status = statuses(call.result(next), a.batch);
  if (a.is_empty()) return;
  values.fill_with_zeros();  // for what is not computed
  lefts.fill_with_zeros();
  rights.fill_with_zeros();
  if constexpr (!is_complex<T>) imaginary.fill_with_zeros();
  static const Routine<T> routine("geev");
  const auto copy = space<T>(n * n);
  [[maybe_unused]] const auto real_work = space<Real<T>>(2 * n);
  [[maybe_unused]] const auto packed = space<T>(2 * n * n);
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0;
    std::copy_n(a[i], n * n, copy.get());
    if (size != -1 && !is_finite(a, i)) {
      *status[i] = not_finite;
      return;
    }
    if constexpr (is_complex<T>) {
      routine(left, right, n, copy.get(), n, values[i], lefts[i], n, rights[i], n, work, size, real_work.get(), &info);
    } else {
      T* const packed_rights = packed.get() + n * n;
      routine(left, right, n, copy.get(), n, values[i], imaginary[i], packed.get(), n, packed_rights, n, work, size,
              &info);
      if (size != -1 && info == 0 && left == 'V') unpack(packed.get(), imaginary[i], n, lefts[i]);
      if (size != -1 && info == 0 && right == 'V') unpack(packed_rights, imaginary[i], n, rights[i]);
    }
    *status[i] = static_cast<std::int32_t>(info);
  });
}

template <class T>
void typed_geev(const Call& call) {
  geev<T>(call.letter("compute_left", "NV"), call.letter("compute_right", "NV"), call.argument(0), call, 0);
}

char letter(const Buffer& buffer) { return buffer.number<std::uint8_t>() == 'V' ? 'V' : 'N'; }

template <class T>
void untyped_geev(const Call& call) {
  constexpr std::int64_t work_results = is_complex<T> ? 2 : 3;
  geev<T>(letter(call.argument(2)), letter(call.argument(3)), call.argument(4), call, work_results);
}

/// Where the results of `gees` are.
struct SchurResults {
  std::int64_t vectors, values, selected, info;
};

template <class T>
void gees(char mode, const Buffer& matrix, const Call& call, const SchurResults& results) {
  const auto a = copied(square<T>(matrix), call.result(0));
  const Int n = a.rows;
  const auto vectors = call.result(results.vectors).matrices<T>(a.batch, n, n);
  const auto values = call.result(results.values).vectors<T>(a.batch, n);
  [[maybe_unused]] Arrays<T> imaginary{};
  if constexpr (!is_complex<T>) imaginary = call.result(results.values + 1).vectors<T>(a.batch, n);
  statuses(call.result(results.selected), a.batch);  // nothing is sorted
  const auto status = statuses(call.result(results.info), a.batch);
  if (a.is_empty()) return;
  vectors.fill_with_zeros();  // for what is not computed
  values.fill_with_zeros();
  if constexpr (!is_complex<T>) imaginary.fill_with_zeros();
  static const Routine<T> routine("gees");
  [[maybe_unused]] const auto real_work = space<Real<T>>(n);
  std::int32_t unused = 0;  // instead of a function that selects, and of work space for that
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0, selected = 0;
    if constexpr (is_complex<T>)
      routine(mode, 'N', &unused, n, a[i], n, &selected, values[i], vectors[i], n, work, size, real_work.get(), &unused,
              &info);
    else
      routine(mode, 'N', &unused, n, a[i], n, &selected, values[i], imaginary[i], vectors[i], n, work, size, &unused,
              &info);
    *status[i] = static_cast<std::int32_t>(info);
  });
}

template <class T>
void typed_gees(const Call& call) {
  static_cast<void>(call.letter("sort", "N"));
  constexpr SchurResults results = is_complex<T> ? SchurResults{1, 2, 3, 4} : SchurResults{1, 2, 4, 5};
  gees<T>(call.letter("mode", "NV"), call.argument(0), call, results);
}

template <class T>
void untyped_gees(const Call& call) {
  constexpr SchurResults results{3, is_complex<T> ? 2 : 1, 4, 5};
  gees<T>(letter(call.argument(2)), call.argument(4), call, results);
}

template <class T>
void add_all(Table& table) {
  const auto symmetric = is_complex<T> ? "heevd" : "syevd";
  add<T>(table, symmetric, handler<typed_syevd<T>, Most{1, 3}>);
  add_untyped<T>(table, symmetric, handler<untyped_syevd<T>>);
  add<T>(table, "geev", handler<typed_geev<T>, Most{1, is_complex<T> ? 4 : 5}>);
  add_untyped<T>(table, "geev", handler<untyped_geev<T>>);
  add<T>(table, "gees", handler<typed_gees<T>, Most{1, is_complex<T> ? 5 : 6}>);
  add_untyped<T>(table, "gees", handler<untyped_gees<T>>);
}

}  // namespace

void add_eigenvalues(Table& table) {
  add_all<float>(table);
  add_all<double>(table);
  add_all<std::complex<float>>(table);
  add_all<std::complex<double>>(table);
}

}  // namespace jaxexp::runtime::lapack
