// A table of contents.
#include "bindings/base/define.h"

#include "bindings/archive/end.h"
#include "bindings/archive/index_view.h"
#include "bindings/archive/member.h"
#include "bindings/archive/records.h"
#include "bindings/archive/verification.h"

namespace jaxexp::bindings {

void define_archive(nb::module_& m) {
  define_member(m);
  define_index(m);
  define_end(m);
  define_records(m);
  define_verification(m);
}

}  // namespace jaxexp::bindings
