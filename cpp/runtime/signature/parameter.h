// An argument or a result as the module has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jaxexp/artifact.h"
#include "runtime/plugin/element_type.h"
#include "runtime/signature/dimensions.h"
#include "runtime/signature/tiling.h"

namespace jaxexp::runtime {

struct Parameter {
  /// Throws RunError where no plugin has its dtype.
  Parameter(const Value& value, std::uint32_t nr_devices, Expressions& known);

  bool is_symbolic() const;
  /// Its shape for these variables, which determine it.
  std::vector<std::int64_t> shape(const Variables& variables) const;
  /// As in "float32[b,4]".
  std::string str() const;

  std::string path;
  /// PRNG keys are what their data are, float0 is bool.
  const ElementType* type;
  /// PRNG keys have the dimension of their data behind their own.
  std::vector<Dimension> dimensions;
  Tiling tiling;
  std::optional<std::string> memory_kind;
};

/// For each value one. The artifact has to stay.
std::vector<Parameter> parameters(const std::vector<Value>& values, std::uint32_t nr_devices, Expressions& known);

}  // namespace jaxexp::runtime
