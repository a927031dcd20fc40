// What JAX's extended dtypes are in a module.
#include "runtime/signature/parameter.h"

#include <algorithm>

#include "jaxexp/run_error.h"

namespace jaxexp::runtime {
namespace {

struct Extended {
  std::string_view name, type;
  std::string_view last_dimension;  // empty: none
};

constexpr Extended extended[] = {
    {"key<fry>", "uint32", "2"}, {"key<rbg>", "uint32", "4"}, {"key<urbg>", "uint32", "4"}, {"float0", "bool", ""}};

}  // namespace

Parameter::Parameter(const Value& value, std::uint32_t nr_devices, Expressions& known)
    : path(value.path), tiling(value, nr_devices) {
  for (const std::string_view dimension : value.shape) dimensions.emplace_back(dimension, known);
  const auto* const found = std::ranges::find(extended, value.dtype, &Extended::name);
  if (found != std::end(extended) && !found->last_dimension.empty())
    dimensions.emplace_back(found->last_dimension, known);
  type = element_type(found == std::end(extended) ? std::string_view(value.dtype) : found->type);
  if (!type)
    throw RunError(RunError::Reason::unsupported,
                   path + " is " + value.str() + ", and no plugin is known to have such a dtype");
  if (value.sharding && value.sharding->memory_kind) memory_kind = *value.sharding->memory_kind;
}

bool Parameter::is_symbolic() const {
  return !std::ranges::all_of(dimensions, [](const Dimension& d) { return d.is_constant(); });
}

std::vector<std::int64_t> Parameter::shape(const Variables& variables) const {
  std::vector<std::int64_t> sizes;
  sizes.reserve(dimensions.size());
  for (const Dimension& dimension : dimensions) {
    const Checked size = dimension.evaluate(variables);
    if (!size || *size < 0)
      throw RunError(RunError::Reason::argument, path + ".shape[" + std::to_string(sizes.size()) + "] would be " +
                                                     (size ? std::to_string(*size) : "too large for 64 bits") +
                                                     " for the arguments' shapes: it is " +
                                                     std::string(dimension.text));
    sizes.push_back(*size);
  }
  return sizes;
}

std::string Parameter::str() const {
  std::string text(type->name);
  text += '[';
  for (std::size_t i = 0; i < dimensions.size(); ++i) (text += i > 0 ? "," : "") += dimensions[i].text;
  return text + ']';
}

std::vector<Parameter> parameters(const std::vector<Value>& values, std::uint32_t nr_devices, Expressions& known) {
  std::vector<Parameter> found;
  found.reserve(values.size());
  for (const Value& value : values) found.emplace_back(value, nr_devices, known);
  return found;
}

}  // namespace jaxexp::runtime
