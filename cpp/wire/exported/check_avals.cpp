// Distinct avals are few, and so are distinct dimensions.
#include "wire/exported/check_avals.h"

#include <string_view>

#include "wire/exported/dimension.h"
#include "wire/exported/requirements.h"

namespace jaxexp::wire {

void AvalCheck::check(const schema::AbstractValue& aval, const Path& path) {
  if (!avals_.insert(aval)) return;
  require_known(root_, "a kind of abstract value", aval.kind(), schema::AbstractValueKind::shapedArray, path, "kind");
  require_known(root_, "a memory space", aval.memory_space(), schema::MemorySpace::Any, path, "memory_space");
  each(aval.shape(), path, "shape", [&](const flatbuffers::String& dimension, const Path& p) {
    const std::string_view text = dimension.string_view();
    if (is_size(text)) return;
    if (dimensions_.insert(dimension)) parse_dimension(text, p);
    symbolic_.insert(aval);
  });
}

bool AvalCheck::is_symbolic(const Values& v) const {
  if (symbolic_.empty()) return false;
  for (std::uint32_t i = 0; i < v.size(); ++i)
    if (symbolic_.contains(v.aval(i))) return true;
  return false;
}

}  // namespace jaxexp::wire
