// Cholesky, LU and QR factorizations.
#include <algorithm>

#include "runtime/lapack/table.h"

namespace jaxexp::runtime::lapack {
namespace {

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

template <class T>
void add_all(Table& table) {
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
}

}  // namespace

void add_factorizations(Table& table) {
  add_all<float>(table);
  add_all<double>(table);
  add_all<std::complex<float>>(table);
  add_all<std::complex<double>>(table);
}

}  // namespace jaxexp::runtime::lapack
