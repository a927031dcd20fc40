// Matrices brought into Hessenberg and tridiagonal form.
#include "runtime/lapack/table.h"

namespace jaxexp::runtime::lapack {
namespace {

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

template <class T>
void add_all(Table& table) {
  const auto tridiagonal = is_complex<T> ? "hetrd" : "sytrd";
  add<T>(table, "gehrd", handler<typed_gehrd<T>, Most{1, 3}>);
  add_untyped<T>(table, "gehrd", handler<untyped_gehrd<T>>);
  add<T>(table, tridiagonal, handler<typed_sytrd<T>, Most{1, 5}>);
  add_untyped<T>(table, tridiagonal, handler<untyped_sytrd<T>>);
}

}  // namespace

void add_reductions(Table& table) {
  add_all<float>(table);
  add_all<double>(table);
  add_all<std::complex<float>>(table);
  add_all<std::complex<double>>(table);
}

}  // namespace jaxexp::runtime::lapack
