#include "runtime/refine/refine.h"

#include "runtime/refine/parts.h"
#include "runtime/refine/refiner.h"

namespace jaxexp::runtime::refine {

std::optional<std::vector<std::uint8_t>> with_shapes(std::span<const std::uint8_t> module, const wire::Path& where,
                                                     std::span<const Shape> arguments) {
  Parts parts(module, where);
  if (!parts.tables().has_dynamic_types()) return std::nullopt;
  const Code code = parts.code();
  return parts.written(Refiner(parts.tables(), code, module.size()).refined(arguments));
}

}  // namespace jaxexp::runtime::refine
