// Singular value decompositions.
#include <algorithm>

#include "runtime/lapack/table.h"

namespace jaxexp::runtime::lapack {
namespace {

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

template <class T>
void add_all(Table& table) {
  add<T>(table, "gesdd", handler<typed_gesdd<T>, Most{1, 5}>);
  add_untyped<T>(table, "gesdd", handler<untyped_gesdd<T>>);
  add<T>(table, "gesvd", handler<typed_gesvd<T>, Most{1, 5}>);
}

}  // namespace

void add_singular_values(Table& table) {
  add_all<float>(table);
  add_all<double>(table);
  add_all<std::complex<float>>(table);
  add_all<std::complex<double>>(table);
}

}  // namespace jaxexp::runtime::lapack
