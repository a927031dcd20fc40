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

/// How JAX writes a call: before 0.4.31, it was untyped, with sizes and choices as arguments in front of the arrays.
enum class Form { untyped, typed };

constexpr std::int64_t argument_of(Form form, std::int64_t typed, std::int64_t untyped) {
  return form == Form::typed ? typed : untyped;
}

bool choice(const Call& call, std::int64_t argument) { return call.argument(argument).number<std::int32_t>() != 0; }

/// Which triangle of a matrix is meant, in an untyped call by this argument.
template <Form form>
char uplo_of(const Call& call, std::int64_t argument) {
  if constexpr (form == Form::typed) return call.letter("uplo", "LU");
  return choice(call, argument) ? 'L' : 'U';
}

/// Whether vectors are computed (V) or not (N), in an untyped call by this argument.
template <Form form>
char mode_of(const Call& call, std::string_view name, std::int64_t argument) {
  if constexpr (form == Form::typed) return call.letter(name, "NV");
  return call.argument(argument).number<std::uint8_t>() == 'V' ? 'V' : 'N';
}

// Systems of equations: triangular and tridiagonal ones.

struct Triangle {
  char side, uplo, transposed, diagonal;
};

template <Form form>
Triangle triangle_of(const Call& call) {
  if constexpr (form == Form::typed)
    return {call.letter("side", "LR"), call.letter("uplo", "LU"), call.letter("trans_x", "NTC"),
            call.letter("diag", "NU")};
  const auto transposed = call.argument(2).number<std::int32_t>();
  return {choice(call, 0) ? 'L' : 'R', choice(call, 1) ? 'L' : 'U',
          transposed == 0   ? 'N'
          : transposed == 1 ? 'T'
                            : 'C',
          choice(call, 3) ? 'U' : 'N'};
}

template <class T, Form form>
void trsm(const Call& call) {
  constexpr std::int64_t matrix = argument_of(form, 0, 8), factor = argument_of(form, 2, 7);
  const Triangle triangle = triangle_of<form>(call);
  const auto b = call.argument(matrix + 1).matrices<T>();
  const std::int64_t n = triangle.side == 'L' ? b.rows : b.columns;
  const auto a = call.argument(matrix).matrices<T>(b.batch, n, n);
  const auto x = copied(b, call.result(0));
  const bool has_factor = call.nr_arguments() > factor;  // which JAX 0.5 still wrote
  T alpha = has_factor ? call.argument(factor).number<T>() : T{1};
  if (x.is_empty()) return;
  static const Routine<T> routine("trsm");
  for (std::int64_t i = 0; i < x.batch; ++i)
    routine(triangle.side, triangle.uplo, triangle.transposed, triangle.diagonal, Int{x.rows}, Int{x.columns}, &alpha,
            a[i], a.stride(), x[i], x.stride());
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
  for (std::int64_t i = 0; i < x.batch; ++i)
    // The first element below the diagonal belongs to no row.
    *status[i] = routine.status(Int{x.rows}, Int{x.columns}, lower[i] + 1, middle[i], upper[i], x[i], x.stride());
}

// Cholesky, LU and QR factorizations.

template <class T, Form form>
void potrf(const Call& call) {
  const char uplo = uplo_of<form>(call, 0);
  const auto a = copied(square<T>(call.argument(argument_of(form, 0, 3))), call.result(0));
  const auto status = statuses(call.result(1), a.batch);
  if (a.is_empty()) return;
  static const Routine<T> routine("potrf");
  for (std::int64_t i = 0; i < a.batch; ++i) *status[i] = routine.status(uplo, Int{a.rows}, a[i], a.stride());
}

template <class T, Form form>
void getrf(const Call& call) {
  const auto a = copied(call.argument(argument_of(form, 0, 3)).matrices<T>(), call.result(0));
  const std::int64_t rank = std::min(a.rows, a.columns);
  const auto pivots = call.result(1).vectors<std::int32_t>(a.batch, rank);
  const auto status = statuses(call.result(2), a.batch);
  if (a.is_empty()) return;
  static const Routine<T> routine("getrf");
  Integers found(rank);
  for (std::int64_t i = 0; i < a.batch; ++i) {
    *status[i] = routine.status(Int{a.rows}, Int{a.columns}, a[i], a.stride(), found.data());
    found.write(pivots[i], rank);
  }
}

template <class T, Form form>
void geqrf(const Call& call) {
  const auto a = copied(call.argument(argument_of(form, 0, 4)).matrices<T>(), call.result(0));
  const auto tau = call.result(1).vectors<T>(a.batch, std::min(a.rows, a.columns));
  if constexpr (form == Form::untyped) statuses(call.result(2), a.batch);
  if (a.is_empty()) return;
  static const Routine<T> routine("geqrf");
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    routine.status(Int{a.rows}, Int{a.columns}, a[i], a.stride(), tau[i], work, size);
  });
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
  const RealWork<T> real_work(2 * a.columns);
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    found.read(pivots[i], a.columns);
    routine.status(Int{a.rows}, Int{a.columns}, a[i], a.stride(), found.data(), tau[i], work, size, real_work.get());
    if (size != -1) found.write(pivots[i], a.columns);
  });
}

template <class T, Form form>
void orgqr(const Call& call) {
  constexpr std::int64_t reflectors = argument_of(form, 0, 5);
  const auto q = copied(call.argument(reflectors).matrices<T>(), call.result(0));
  const auto tau = call.argument(reflectors + 1).vectors<T>();
  if constexpr (form == Form::untyped) statuses(call.result(1), q.batch);
  if (tau.batch != q.batch || tau.rows > q.columns || q.columns > q.rows)
    throw CallError("a call of LAPACK must have as many rows as columns, and as many columns as reflectors, or more");
  if (q.is_empty()) return;
  static const Routine<T> routine(is_complex<T> ? "ungqr" : "orgqr");
  for_each<T>(q.batch, [&](std::int64_t i, T* work, Int size) {
    routine.status(Int{q.rows}, Int{q.columns}, Int{tau.rows}, q[i], q.stride(), tau[i], work, size);
  });
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
  const char transposed = is_complex<T> ? 'C' : 'T';
  for_each<T>(c.batch, [&](std::int64_t i, T* work, Int size) {
    std::copy_n(a[i], a.size(), copy.get());
    routine.status(is_left ? 'L' : 'R', is_transposed ? transposed : 'N', Int{c.rows}, Int{c.columns}, Int{tau.rows},
                   copy.get(), a.stride(), tau[i], c[i], c.stride(), work, size);
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

/// The (A)ll, (S)ome or (N)one of the vectors.
template <Form form>
char vectors_of(const Call& call) {
  if constexpr (form == Form::typed) return call.letter("mode", "ASN");
  const bool is_full = choice(call, 0);
  return choice(call, 1) ? is_full ? 'A' : 'S' : 'N';
}

template <class T, Form form>
void gesdd(const Call& call) {
  const Decomposition<T> d(vectors_of<form>(call), call.argument(argument_of(form, 0, 6)), call);
  if (d.a.is_empty()) return;
  static const Routine<T> routine("gesdd");
  const Int rows = d.a.rows, columns = d.a.columns, most = std::max(rows, columns);
  Integers integers(8 * d.rank);
  const RealWork<T> real_work(d.mode == 'N' ? 7 * d.rank : d.rank * (5 * d.rank + 5 + 2 * most));
  for_each_finite(d.a, d.status, [&](std::int64_t i, T* work, Int size) {
    return routine.status(d.mode, rows, columns, d.a[i], d.a.stride(), d.values[i], d.u[i], d.u.stride(), d.vt[i],
                          d.vt.stride(), work, size, real_work.get(), integers.data());
  });
}

template <class T>
void gesvd(const Call& call) {
  const Decomposition<T> d(vectors_of<Form::typed>(call), call.argument(0), call);
  if (d.a.is_empty()) return;
  static const Routine<T> routine("gesvd");
  const RealWork<T> real_work(5 * d.rank);
  for_each_finite(d.a, d.status, [&](std::int64_t i, T* work, Int size) {
    return routine.status(d.mode, d.mode, Int{d.a.rows}, Int{d.a.columns}, d.a[i], d.a.stride(), d.values[i], d.u[i],
                          d.u.stride(), d.vt[i], d.vt.stride(), work, size, real_work.get());
  });
}

// Eigenvalues and Schur forms.

template <class T, Form form>
void syevd(const Call& call) {
  const char mode = form == Form::typed ? call.letter("mode", "NV") : 'V', uplo = uplo_of<form>(call, 0);
  const auto a = copied(square<T>(call.argument(argument_of(form, 0, 3))), call.result(0));
  const Int n = a.rows;
  const auto values = call.result(1).vectors<Real<T>>(a.batch, n);
  const auto status = statuses(call.result(2), a.batch);
  if (a.is_empty()) return;
  static const Routine<T> routine(is_complex<T> ? "heevd" : "syevd");
  const Int integers_size = mode == 'V' ? 3 + 5 * n : 1;
  Integers integers(integers_size);
  const RealWork<T> real_work(mode == 'V' ? 1 + 5 * n + 2 * n * n : n);
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    *status[i] = routine.status(mode, uplo, n, a[i], n, values[i], work, size, real_work.get(), real_work.size(),
                                integers.data(), integers_size);
  });
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

/// Of any square matrices. Results are the eigenvalues, then left and right vectors.
template <class T, Form form>
void geev(const Call& call) {
  using Complex = std::complex<Real<T>>;
  const char left = mode_of<form>(call, "compute_left", 2), right = mode_of<form>(call, "compute_right", 3);
  const auto a = square<T>(call.argument(argument_of(form, 0, 4)));
  const Int n = a.rows;
  constexpr std::int64_t work_results = is_complex<T> ? 2 : 3;  // of untyped calls
  constexpr std::int64_t first = argument_of(form, 0, work_results), vectors = first + (is_complex<T> ? 1 : 2);
  const Eigenvalues<T> values(call, first, a.batch, n);
  const auto lefts = call.result(vectors).matrices<Complex>(a.batch, n, n);
  const auto rights = call.result(vectors + 1).matrices<Complex>(a.batch, n, n);
  const auto status = statuses(call.result(vectors + 2), a.batch);
  if (a.is_empty()) return;
  values.fill_with_zeros();  // for what is not computed
  lefts.fill_with_zeros();
  rights.fill_with_zeros();
  static const Routine<T> routine("geev");
  const auto copy = space<T>(n * n);
  const RealWork<T> real_work(2 * n);
  [[maybe_unused]] const auto packed = space<T>(is_complex<T> ? 0 : 2 * n * n);
  for_each_finite(a, status, [&](std::int64_t i, T* work, Int size) {
    std::copy_n(a[i], n * n, copy.get());
    if constexpr (is_complex<T>) {
      return routine.status(left, right, n, copy.get(), n, values[i], lefts[i], n, rights[i], n, work, size,
                            real_work.get());
    } else {
      T* const packed_rights = packed.get() + n * n;
      const std::int32_t found = routine.status(left, right, n, copy.get(), n, values[i], values.imaginary(i),
                                                packed.get(), n, packed_rights, n, work, size);
      if (size != -1 && found == 0 && left == 'V') unpack(packed.get(), values.imaginary(i), n, lefts[i]);
      if (size != -1 && found == 0 && right == 'V') unpack(packed_rights, values.imaginary(i), n, rights[i]);
      return found;
    }
  });
}

template <class T, Form form>
void gees(const Call& call) {
  if constexpr (form == Form::typed) static_cast<void>(call.letter("sort", "N"));
  const char mode = mode_of<form>(call, "mode", 2);
  // Where results are. How many values were selected comes before the last one.
  constexpr std::int64_t vectors_at = argument_of(form, 1, 3), values_at = argument_of(form, 2, is_complex<T> ? 2 : 1),
                         status_at = argument_of(form, is_complex<T> ? 4 : 5, 5);
  const auto a = copied(square<T>(call.argument(argument_of(form, 0, 4))), call.result(0));
  const Int n = a.rows;
  const auto vectors = call.result(vectors_at).matrices<T>(a.batch, n, n);
  const Eigenvalues<T> values(call, values_at, a.batch, n);
  statuses(call.result(status_at - 1), a.batch);  // nothing is sorted
  const auto status = statuses(call.result(status_at), a.batch);
  if (a.is_empty()) return;
  vectors.fill_with_zeros();  // for what is not computed
  values.fill_with_zeros();
  static const Routine<T> routine("gees");
  const RealWork<T> real_work(n);
  std::int32_t unused = 0;  // instead of a function that selects, and of work space for that
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    Int selected = 0;
    *status[i] = routine.status(mode, 'N', &unused, n, a[i], n, &selected, values[i], values.imaginary(i), vectors[i],
                                n, work, size, real_work.get(), &unused);
  });
}

// Matrices brought into Hessenberg and tridiagonal form.

template <class T, Form form>
void gehrd(const Call& call) {
  const bool is_typed = form == Form::typed;
  const Int low = is_typed ? call.number("low") : call.argument(1).number<std::int32_t>();
  const Int high = is_typed ? call.number("high") : call.argument(2).number<std::int32_t>();
  const auto a = copied(square<T>(call.argument(argument_of(form, 0, 6))), call.result(0));
  const Int n = a.rows;
  const auto status = statuses(call.result(2), a.batch);
  const auto tau = call.result(1).vectors<T>(a.batch, std::max<Int>(n - 1, 0));
  if (a.is_empty()) return;
  if (low < 1 || low > high || high > n) throw CallError("a call of LAPACK must have 1 <= low <= high <= the size");
  static const Routine<T> routine("gehrd");
  const auto run = [&](std::int64_t i, T* work, Int size) {
    *status[i] = routine.status(n, low, high, a[i], n, tau[i], work, size);
  };
  for_each<T>(a.batch, run, n);  // some releases of LAPACK ask for less than they want where there is nothing to do
}

template <class T, Form form>
void sytrd(const Call& call) {
  const char uplo = uplo_of<form>(call, 1);
  const auto a = copied(square<T>(call.argument(argument_of(form, 0, 5))), call.result(0));
  const Int n = a.rows;
  const auto status = statuses(call.result(4), a.batch);
  const auto diagonal = call.result(1).vectors<Real<T>>(a.batch, n);
  const auto beside = call.result(2).vectors<Real<T>>(a.batch, std::max<Int>(n - 1, 0));
  const auto tau = call.result(3).vectors<T>(a.batch, std::max<Int>(n - 1, 0));
  if (a.is_empty()) return;
  static const Routine<T> routine(is_complex<T> ? "hetrd" : "sytrd");
  for_each<T>(a.batch, [&](std::int64_t i, T* work, Int size) {
    *status[i] = routine.status(uplo, n, a[i], n, diagonal[i], beside[i], tau[i], work, size);
  });
}

// The targets of custom calls.

struct Target {
  Handler* handler;
  std::string routine;  // such as "dgetrf"
  Form form;
};

using Table = std::map<std::string, Target, std::less<>>;

/// Adds the target of a routine for numbers of type T, as JAX has written it since 0.4.31: "lapack_dgetrf_ffi".
template <class T>
void add(Table& table, std::string_view routine, Handler* handler) {
  const std::string name = letter_of<T>() + std::string(routine);
  table.emplace("lapack_" + name + "_ffi", Target{handler, name, Form::typed});
}

/// Adds what earlier releases wrote: "lapack_dgetrf", without types.
template <class T>
void add_untyped(Table& table, std::string_view routine, Handler* handler, const std::string& library = "lapack_") {
  const std::string name = letter_of<T>() + std::string(routine);
  table.emplace(library + name, Target{handler, name, Form::untyped});
}

template <class T>
void add_all(Table& table) {
  add<T>(table, "trsm", handler<trsm<T, Form::typed>, Most{3, 1}>);
  add_untyped<T>(table, "trsm", handler<trsm<T, Form::untyped>>, "blas_");
  add<T>(table, "gtsv", handler<gtsv<T>, Most{4, 5}>);
  const auto orthogonal = is_complex<T> ? "ungqr" : "orgqr";
  add<T>(table, "potrf", handler<potrf<T, Form::typed>, Most{1, 2}>);
  add_untyped<T>(table, "potrf", handler<potrf<T, Form::untyped>>);
  add<T>(table, "getrf", handler<getrf<T, Form::typed>, Most{1, 3}>);
  add_untyped<T>(table, "getrf", handler<getrf<T, Form::untyped>>);
  add<T>(table, "geqrf", handler<geqrf<T, Form::typed>, Most{1, 2}>);
  add_untyped<T>(table, "geqrf", handler<geqrf<T, Form::untyped>>);
  add<T>(table, "geqp3", handler<geqp3<T>, Most{2, 3}>);
  add<T>(table, orthogonal, handler<orgqr<T, Form::typed>, Most{2, 1}>);
  add_untyped<T>(table, orthogonal, handler<orgqr<T, Form::untyped>>);
  add<T>(table, is_complex<T> ? "unmqr" : "ormqr", handler<ormqr<T>, Most{3, 1}>);
  add<T>(table, "gesdd", handler<gesdd<T, Form::typed>, Most{1, 5}>);
  add_untyped<T>(table, "gesdd", handler<gesdd<T, Form::untyped>>);
  add<T>(table, "gesvd", handler<gesvd<T>, Most{1, 5}>);
  const auto symmetric = is_complex<T> ? "heevd" : "syevd";
  add<T>(table, symmetric, handler<syevd<T, Form::typed>, Most{1, 3}>);
  add_untyped<T>(table, symmetric, handler<syevd<T, Form::untyped>>);
  add<T>(table, "geev", handler<geev<T, Form::typed>, Most{1, is_complex<T> ? 4 : 5}>);
  add_untyped<T>(table, "geev", handler<geev<T, Form::untyped>>);
  add<T>(table, "gees", handler<gees<T, Form::typed>, Most{1, is_complex<T> ? 5 : 6}>);
  add_untyped<T>(table, "gees", handler<gees<T, Form::untyped>>);
  const auto tridiagonal = is_complex<T> ? "hetrd" : "sytrd";
  add<T>(table, "gehrd", handler<gehrd<T, Form::typed>, Most{1, 3}>);
  add_untyped<T>(table, "gehrd", handler<gehrd<T, Form::untyped>>);
  add<T>(table, tridiagonal, handler<sytrd<T, Form::typed>, Most{1, 5}>);
  add_untyped<T>(table, tridiagonal, handler<sytrd<T, Form::untyped>>);
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
  return known && known->form == Form::untyped;
}

void check_routine(std::string_view target) {
  const Target* const known = target_of(target);
  if (known && !library().find(known->routine))
    throw RunError(RunError::Reason::unsupported,
                   "the LAPACK " + library().file().string() + " has no routine " + known->routine);
}

}  // namespace jaxexp::runtime::lapack
