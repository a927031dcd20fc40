#include "runtime/lapack/lapack.h"
#include "runtime/lapack/library.h"
#include "runtime/lapack/table.h"

namespace jaxexp::runtime::lapack {
namespace {

const Target* target_of(std::string_view name) {
  static const Table* const table = [] {
    auto* const made = new Table;  // is never freed, as handlers may run while the process exits
    add_solvers(*made);
    add_factorizations(*made);
    add_singular_values(*made);
    add_eigenvalues(*made);
    add_reductions(*made);
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
