// The targets of custom calls.
#pragma once

#include <complex>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "runtime/lapack/call.h"
#include "runtime/lapack/routine.h"
#include "runtime/plugin/handlers.h"

namespace jaxexp::runtime::lapack {

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

void add_solvers(Table& table);
void add_factorizations(Table& table);
void add_singular_values(Table& table);
void add_eigenvalues(Table& table);
void add_reductions(Table& table);

}  // namespace jaxexp::runtime::lapack
