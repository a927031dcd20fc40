// Systems of equations: triangular and tridiagonal ones.
#include "runtime/lapack/table.h"

namespace jaxexp::runtime::lapack {
namespace {

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

template <class T>
void add_all(Table& table) {
  add<T>(table, "trsm", handler<typed_trsm<T>, Most{3, 1}>);
  add_untyped<T>(table, "trsm", handler<untyped_trsm<T>>, "blas_");
  add<T>(table, "gtsv", handler<gtsv<T>, Most{4, 5}>);
}

}  // namespace

void add_solvers(Table& table) {
  add_all<float>(table);
  add_all<double>(table);
  add_all<std::complex<float>>(table);
  add_all<std::complex<double>>(table);
}

}  // namespace jaxexp::runtime::lapack
