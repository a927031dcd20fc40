// Handlers of JAX's custom calls, each for four types of numbers, and the table of their targets.
#include <algorithm>
#include <complex>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "runtime/lapack/call.h"
#include "runtime/lapack/lapack.h"
#include "runtime/lapack/library.h"
#include "runtime/plugin/handlers.h"

namespace jaxexp::runtime::lapack {
namespace {

// Systems of equations: triangular and tridiagonal ones.

struct Triangle {
  char side, uplo, transposed, diagonal;
};

/// `factor` scales the result: what JAX writes today has none.
template <class T>
void trsm(const Triangle& triangle, const Buffer* factor, const Buffer& matrix, const Buffer& sides,
          const Buffer& result) {
  const auto b = sides.matrices<T>();
  const std::int64_t n = triangle.side == 'L' ? b.rows : b.columns;
  const auto a = matrix.matrices<T>(b.batch, n, n);
  const auto x = copied(b, result);
  T alpha = factor ? factor->number<T>() : T{1};
  if (x.is_empty()) return;
  static const Routine<T> routine("trsm");
  for (std::int64_t i = 0; i < x.batch; ++i)
    routine(triangle.side, triangle.uplo, triangle.transposed, triangle.diagonal, Int{x.rows}, Int{x.columns}, &alpha,
            a[i], a.stride(), x[i], x.stride());
}

template <class T>
void typed_trsm(const Call& call) {
  const Triangle triangle{call.letter("side", "LR"), call.letter("uplo", "LU"), call.letter("trans_x", "NTC"),
                          call.letter("diag", "NU")};
  constexpr std::int64_t factor = 2;  // which JAX 0.5 still wrote
  if (call.nr_arguments() <= factor)
    return trsm<T>(triangle, nullptr, call.argument(0), call.argument(1), call.result(0));
  const Buffer scale = call.argument(factor);
  trsm<T>(triangle, &scale, call.argument(0), call.argument(1), call.result(0));
}

template <class T>
void untyped_trsm(const Call& call) {
  const auto choice = [&](std::int64_t i) { return call.argument(i).number<std::int32_t>(); };
  const Triangle triangle{choice(0) ? 'L' : 'R', choice(1) ? 'L' : 'U',
                          choice(2) == 0   ? 'N'
                          : choice(2) == 1 ? 'T'
                                           : 'C',
                          choice(3) ? 'U' : 'N'};
  const Buffer scale = call.argument(7);
  trsm<T>(triangle, &scale, call.argument(8), call.argument(9), call.result(0));
}

template <class T>
void gtsv(const Call& call) {
  const auto b = call.argument(3).matrices<T>();
  Arrays<T> diagonals[3];
  for (const std::int64_t i : {0, 1, 2}) {
    diagonals[i] = call.result(i).vectors<T>(b.batch, b.rows);
    diagonals[i].copy(call.argument(i).vectors<T>(b.batch, b.rows));
  }
  const auto x = copied(b, call.result(3));
  const auto status = statuses(call.result(4), b.batch);
  if (x.is_empty()) return;
  static const Routine<T> routine("gtsv");
  const auto& [lower, middle, upper] = diagonals;
  for (std::int64_t i = 0; i < x.batch; ++i) {
    Int info = 0;
    // The first element below the diagonal belongs to no row.
    routine(Int{x.rows}, Int{x.columns}, lower[i] + 1, middle[i], upper[i], x[i], x.stride(), &info);
    *status[i] = static_cast<std::int32_t>(info);
  }
}

// Cholesky, LU and QR factorizations.

template <class T>
void potrf(char uplo, const Buffer& matrix, const Buffer& result, const Buffer& info_result) {
  const auto a = copied(square<T>(matrix), result);
  const auto status = statuses(info_result, a.batch);
  if (a.is_empty()) return;
  static const Routine<T> routine("potrf");
  for (std::int64_t i = 0; i < a.batch; ++i) {
    Int info = 0;
    routine(uplo, Int{a.rows}, a[i], a.stride(), &info);
    *status[i] = static_cast<std::int32_t>(info);
  }
}

template <class T>
void typed_potrf(const Call& call) {
  potrf<T>(call.letter("uplo", "LU"), call.argument(0), call.result(0), call.result(1));
}

template <class T>
void untyped_potrf(const Call& call) {
  const bool is_lower = call.argument(0).number<std::int32_t>() != 0;
  potrf<T>(is_lower ? 'L' : 'U', call.argument(3), call.result(0), call.result(1));
}

/// The matrix is argument `first`.
template <class T, std::int64_t first>
void getrf(const Call& call) {
  const auto a = copied(call.argument(first).matrices<T>(), call.result(0));
  const std::int64_t rank = std::min(a.rows, a.columns);
  const auto pivots = call.result(1).vectors<std::int32_t>(a.batch, rank);
  const auto status = statuses(call.result(2), a.batch);
  if (a.is_empty()) return;
  static const Routine<T> routine("getrf");
  Integers found(rank);
  for (std::int64_t i = 0; i < a.batch; ++i) {
    Int info = 0;
    routine(Int{a.rows}, Int{a.columns}, a[i], a.stride(), found.data(), &info);
    found.write(pivots[i], rank);
    *status[i] = static_cast<std::int32_t>(info);
  }
}

template <class T>
void geqrf(const Buffer& matrix, const Buffer& result, const Buffer& factors) {
  const auto a = copied(matrix.matrices<T>(), result);
  const auto tau = factors.vectors<T>(a.batch, std::min(a.rows, a.columns));
  if (a.is_empty()) return;
  static const Routine<T> routine("geqrf");
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0;
    routine(Int{a.rows}, Int{a.columns}, a[i], a.stride(), tau[i], work, size, &info);
  });
}

template <class T>
void typed_geqrf(const Call& call) {
  geqrf<T>(call.argument(0), call.result(0), call.result(1));
}

template <class T>
void untyped_geqrf(const Call& call) {
  statuses(call.result(2), call.argument(4).matrices<T>().batch);
  geqrf<T>(call.argument(4), call.result(0), call.result(1));
}

template <class T>
void geqp3(const Call& call) {
  const auto a = copied(call.argument(0).matrices<T>(), call.result(0));
  const auto pivots = call.result(1).vectors<std::int32_t>(a.batch, a.columns);
  pivots.copy(call.argument(1).vectors<std::int32_t>(a.batch, a.columns));
  const auto tau = call.result(2).vectors<T>(a.batch, std::min(a.rows, a.columns));
  if (a.is_empty()) return;
  static const Routine<T> routine("geqp3");
  Integers found(a.columns);
  [[maybe_unused]] const auto real_work = space<Real<T>>(2 * a.columns);
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0;
    found.read(pivots[i], a.columns);
    if constexpr (is_complex<T>)
      routine(Int{a.rows}, Int{a.columns}, a[i], a.stride(), found.data(), tau[i], work, size, real_work.get(), &info);
    else
      routine(Int{a.rows}, Int{a.columns}, a[i], a.stride(), found.data(), tau[i], work, size, &info);
    if (size != -1) found.write(pivots[i], a.columns);
  });
}

/// The orthogonal matrix of a QR factorization.
template <class T>
void orgqr(const Buffer& reflectors, const Buffer& factors, const Buffer& result) {
  const auto q = copied(reflectors.matrices<T>(), result);
  const auto tau = factors.vectors<T>();
  if (tau.batch != q.batch || tau.rows > q.columns || q.columns > q.rows)
    throw CallError("a call of LAPACK must have as many rows as columns, and as many columns as reflectors, or more");
  if (q.is_empty()) return;
  static const Routine<T> routine(is_complex<T> ? "ungqr" : "orgqr");
  for_each<T>(q.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0;
    routine(Int{q.rows}, Int{q.columns}, Int{tau.rows}, q[i], q.stride(), tau[i], work, size, &info);
  });
}

template <class T>
void typed_orgqr(const Call& call) {
  orgqr<T>(call.argument(0), call.argument(1), call.result(0));
}

template <class T>
void untyped_orgqr(const Call& call) {
  statuses(call.result(1), call.argument(5).matrices<T>().batch);
  orgqr<T>(call.argument(5), call.argument(6), call.result(0));
}

/// A product with the orthogonal matrix of a QR factorization.
template <class T>
void ormqr(const Call& call) {
  const bool is_left = call.flag("left"), is_transposed = call.flag("transpose");
  const auto a = call.argument(0).matrices<T>();
  const auto tau = call.argument(1).vectors<T>();
  const auto c = copied(call.argument(2).matrices<T>(), call.result(0));
  if (a.batch != c.batch || tau.batch != c.batch || a.rows != (is_left ? c.rows : c.columns) ||
      tau.rows > std::min(a.rows, a.columns))
    throw CallError("a call of LAPACK must have reflectors that fit the matrix that they are applied to");
  if (c.is_empty()) return;
  static const Routine<T> routine(is_complex<T> ? "unmqr" : "ormqr");
  // The routine writes to the reflectors for a while, which may be constant, or the same memory as their factors.
  const auto copy = space<T>(a.size());
  for_each<T>(c.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0;
    std::copy_n(a[i], a.size(), copy.get());
    routine(is_left ? 'L' : 'R',
            !is_transposed  ? 'N'
            : is_complex<T> ? 'C'
                            : 'T',
            Int{c.rows}, Int{c.columns}, Int{tau.rows}, copy.get(), a.stride(), tau[i], c[i], c.stride(), work, size,
            &info);
  });
}

// Singular value decompositions.

/// What the two algorithms share: arrays of the right shapes, for the (A)ll, (S)ome or (N)one of the vectors.
template <class T>
struct Decomposition {
  Decomposition(char mode, const Buffer& matrix, const Call& call)
      : mode(mode),
        a(copied(matrix.matrices<T>(), call.result(0))),
        rank(std::min(a.rows, a.columns)),
        values(call.result(1).vectors<Real<T>>(a.batch, rank)),
        u(mode == 'N' ? call.result(2).matrices<T>()
                      : call.result(2).matrices<T>(a.batch, a.rows, mode == 'A' ? a.rows : rank)),
        vt(mode == 'N' ? call.result(3).matrices<T>()
                       : call.result(3).matrices<T>(a.batch, mode == 'A' ? a.columns : rank, a.columns)),
        status(statuses(call.result(4), a.batch)) {
    values.fill_with_zeros();  // for what is not computed
    u.fill_with_zeros();
    vt.fill_with_zeros();
  }

  char mode;
  Arrays<T> a;
  std::int64_t rank;
  Arrays<Real<T>> values;
  Arrays<T> u, vt;
  Arrays<std::int32_t> status;
};

template <class T>
void gesdd(const Decomposition<T>& d) {
  if (d.a.is_empty()) return;
  static const Routine<T> routine("gesdd");
  const Int rows = d.a.rows, columns = d.a.columns, most = std::max(rows, columns);
  Integers integers(8 * d.rank);
  [[maybe_unused]] Space<Real<T>> real_work;
  if constexpr (is_complex<T>)
    real_work = space<Real<T>>(d.mode == 'N' ? 7 * d.rank : d.rank * (5 * d.rank + 5 + 2 * most));
  for_each<T>(d.a.batch, [&](std::int64_t i, T* work, Int size) {
    if (size != -1 && !is_finite(d.a, i)) {
      *d.status[i] = not_finite;
      return;
    }
    Int info = 0;
    if constexpr (is_complex<T>)
      routine(d.mode, rows, columns, d.a[i], d.a.stride(), d.values[i], d.u[i], d.u.stride(), d.vt[i], d.vt.stride(),
              work, size, real_work.get(), integers.data(), &info);
    else
      routine(d.mode, rows, columns, d.a[i], d.a.stride(), d.values[i], d.u[i], d.u.stride(), d.vt[i], d.vt.stride(),
              work, size, integers.data(), &info);
    *d.status[i] = static_cast<std::int32_t>(info);
  });
}

template <class T>
void gesvd(const Decomposition<T>& d) {
  if (d.a.is_empty()) return;
  static const Routine<T> routine("gesvd");
  [[maybe_unused]] const auto real_work = space<Real<T>>(5 * d.rank);
  for_each<T>(d.a.batch, [&](std::int64_t i, T* work, Int size) {
    if (size != -1 && !is_finite(d.a, i)) {
      *d.status[i] = not_finite;
      return;
    }
    Int info = 0;
    if constexpr (is_complex<T>)
      routine(d.mode, d.mode, Int{d.a.rows}, Int{d.a.columns}, d.a[i], d.a.stride(), d.values[i], d.u[i], d.u.stride(),
              d.vt[i], d.vt.stride(), work, size, real_work.get(), &info);
    else
      routine(d.mode, d.mode, Int{d.a.rows}, Int{d.a.columns}, d.a[i], d.a.stride(), d.values[i], d.u[i], d.u.stride(),
              d.vt[i], d.vt.stride(), work, size, &info);
    *d.status[i] = static_cast<std::int32_t>(info);
  });
}

template <class T>
void typed_gesdd(const Call& call) {
  gesdd<T>({call.letter("mode", "ASN"), call.argument(0), call});
}

template <class T>
void untyped_gesdd(const Call& call) {
  const auto choice = [&](std::int64_t i) { return call.argument(i).number<std::int32_t>() != 0; };
  const bool is_full = choice(0), has_vectors = choice(1);
  gesdd<T>({has_vectors ? is_full ? 'A' : 'S' : 'N', call.argument(6), call});
}

template <class T>
void typed_gesvd(const Call& call) {
  gesvd<T>({call.letter("mode", "ASN"), call.argument(0), call});
}

// Eigenvalues and Schur forms.

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

// Matrices brought into Hessenberg and tridiagonal form.

template <class T>
void gehrd(Int low, Int high, const Buffer& matrix, const Call& call) {
  const auto a = copied(square<T>(matrix), call.result(0));
  const Int n = a.rows;
  const auto status = statuses(call.result(2), a.batch);
  const auto tau = call.result(1).vectors<T>(a.batch, std::max<Int>(n - 1, 0));
  if (a.is_empty()) return;
  if (low < 1 || low > high || high > n) throw CallError("a call of LAPACK must have 1 <= low <= high <= the size");
  static const Routine<T> routine("gehrd");
  for_each<T>(
      a.batch,
      [&](std::int64_t i, T* work, Int size) {
        Int info = 0;
        routine(n, low, high, a[i], n, tau[i], work, size, &info);
        *status[i] = static_cast<std::int32_t>(info);
      },
      n);  // some releases of LAPACK ask for less than they want where there is nothing to do
}

template <class T>
void typed_gehrd(const Call& call) {
  gehrd<T>(call.number("low"), call.number("high"), call.argument(0), call);
}

template <class T>
void untyped_gehrd(const Call& call) {
  const auto number = [&](std::int64_t i) { return call.argument(i).number<std::int32_t>(); };
  gehrd<T>(number(1), number(2), call.argument(6), call);
}

template <class T>
void sytrd(char uplo, const Buffer& matrix, const Call& call) {
  const auto a = copied(square<T>(matrix), call.result(0));
  const Int n = a.rows;
  const auto status = statuses(call.result(4), a.batch);
  const auto diagonal = call.result(1).vectors<Real<T>>(a.batch, n);
  const auto beside = call.result(2).vectors<Real<T>>(a.batch, std::max<Int>(n - 1, 0));
  const auto tau = call.result(3).vectors<T>(a.batch, std::max<Int>(n - 1, 0));
  if (a.is_empty()) return;
  static const Routine<T> routine(is_complex<T> ? "hetrd" : "sytrd");
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    Int info = 0;
    routine(uplo, n, a[i], n, diagonal[i], beside[i], tau[i], work, size, &info);
    *status[i] = static_cast<std::int32_t>(info);
  });
}

template <class T>
void typed_sytrd(const Call& call) {
  sytrd<T>(call.letter("uplo", "LU"), call.argument(0), call);
}

template <class T>
void untyped_sytrd(const Call& call) {
  const bool is_lower = call.argument(1).number<std::int32_t>() != 0;
  sytrd<T>(is_lower ? 'L' : 'U', call.argument(5), call);
}

// The targets of custom calls.

struct Target {
  Handler* handler;
  std::string routine;  // such as "dgetrf"
  bool is_untyped;
};

using Table = std::map<std::string, Target, std::less<>>;

/// Adds the target of a routine for numbers of type T, as JAX has written it since 0.4.31: "lapack_dgetrf_ffi".
template <class T>
void add(Table& table, std::string_view routine, Handler* handler) {
  const std::string name = letter_of<T>() + std::string(routine);
  table.emplace("lapack_" + name + "_ffi", Target{handler, name, false});
}

/// Adds what earlier releases wrote: "lapack_dgetrf", without types.
template <class T>
void add_untyped(Table& table, std::string_view routine, Handler* handler, const std::string& library = "lapack_") {
  const std::string name = letter_of<T>() + std::string(routine);
  table.emplace(library + name, Target{handler, name, true});
}

template <class T>
void add_all(Table& table) {
  add<T>(table, "trsm", handler<typed_trsm<T>, Most{3, 1}>);
  add_untyped<T>(table, "trsm", handler<untyped_trsm<T>>, "blas_");
  add<T>(table, "gtsv", handler<gtsv<T>, Most{4, 5}>);
  const auto orthogonal = is_complex<T> ? "ungqr" : "orgqr";
  add<T>(table, "potrf", handler<typed_potrf<T>, Most{1, 2}>);
  add_untyped<T>(table, "potrf", handler<untyped_potrf<T>>);
  add<T>(table, "getrf", handler<getrf<T, 0>, Most{1, 3}>);
  add_untyped<T>(table, "getrf", handler<getrf<T, 3>>);
  add<T>(table, "geqrf", handler<typed_geqrf<T>, Most{1, 2}>);
  add_untyped<T>(table, "geqrf", handler<untyped_geqrf<T>>);
  add<T>(table, "geqp3", handler<geqp3<T>, Most{2, 3}>);
  add<T>(table, orthogonal, handler<typed_orgqr<T>, Most{2, 1}>);
  add_untyped<T>(table, orthogonal, handler<untyped_orgqr<T>>);
  add<T>(table, is_complex<T> ? "unmqr" : "ormqr", handler<ormqr<T>, Most{3, 1}>);
  add<T>(table, "gesdd", handler<typed_gesdd<T>, Most{1, 5}>);
  add_untyped<T>(table, "gesdd", handler<untyped_gesdd<T>>);
  add<T>(table, "gesvd", handler<typed_gesvd<T>, Most{1, 5}>);
  const auto symmetric = is_complex<T> ? "heevd" : "syevd";
  add<T>(table, symmetric, handler<typed_syevd<T>, Most{1, 3}>);
  add_untyped<T>(table, symmetric, handler<untyped_syevd<T>>);
  add<T>(table, "geev", handler<typed_geev<T>, Most{1, is_complex<T> ? 4 : 5}>);
  add_untyped<T>(table, "geev", handler<untyped_geev<T>>);
  add<T>(table, "gees", handler<typed_gees<T>, Most{1, is_complex<T> ? 5 : 6}>);
  add_untyped<T>(table, "gees", handler<untyped_gees<T>>);
  const auto tridiagonal = is_complex<T> ? "hetrd" : "sytrd";
  add<T>(table, "gehrd", handler<typed_gehrd<T>, Most{1, 3}>);
  add_untyped<T>(table, "gehrd", handler<untyped_gehrd<T>>);
  add<T>(table, tridiagonal, handler<typed_sytrd<T>, Most{1, 5}>);
  add_untyped<T>(table, tridiagonal, handler<untyped_sytrd<T>>);
}

const Target* target_of(std::string_view name) {
  static const Table* const table = [] {
    auto* const made = new Table;  // is never freed, as handlers may run while the process exits
    add_all<float>(*made);
    add_all<double>(*made);
    add_all<std::complex<float>>(*made);
    add_all<std::complex<double>>(*made);
    return made;
  }();
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace

Handler* handler_of(std::string_view target) {
  const Target* const known = target_of(target);
  return known ? known->handler : nullptr;
}

bool is_untyped(std::string_view target) {
  const Target* const known = target_of(target);
  return known && known->is_untyped;
}

void check_routine(std::string_view target) {
  const Target* const known = target_of(target);
  if (known && !library().find(known->routine))
    throw RunError(RunError::Reason::unsupported,
                   "the LAPACK " + library().file().string() + " has no routine " + known->routine);
}

}  // namespace jaxexp::runtime::lapack
