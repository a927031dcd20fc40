// PartitionSpec and PartitionSpecOneAxis <-> jax.sharding.PartitionSpec.
#include <algorithm>

#include "bindings/base/errors.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {

Offset<schema::PartitionSpec> Encoder::partition_spec(nb::handle spec) {
  std::uint32_t& offset = known(specs_, spec);
  if (offset != 0) return offset;
  Offsets<schema::PartitionSpecOneAxis> axes;
  for (nb::handle partition : spec.attr(names_._partitions)) axes.push_back(one_axis(partition));
  const auto partitions = writer_.offsets<schema::PartitionSpecOneAxis>(axes);
  const auto reduced = axis_set(spec.attr(names_.reduced));
  const nb::object unreduced_names = spec.attr(names_.unreduced);
  const auto unreduced = axis_set(unreduced_names);
  if (nb::len(unreduced_names) > 0) {
    const nb::object kind = nb::getattr(spec, "unreduced_kind", nb::none());
    if (!kind.is_none() && !kind.attr("name").equal(nb::str("sum")))
      refuse("the format holds axes that are unreduced by a sum, found " + describe(kind));
  }
  const auto table = writer_.table<schema::PartitionSpec>(
      wire::Table::spec, {partitions.o, reduced.o, unreduced.o},
      [&] { return schema::CreatePartitionSpec(writer_.fbb(), partitions, reduced, unreduced); });
  return offset = table.o;
}

Offset<schema::PartitionSpecOneAxis> Encoder::one_axis(nb::handle partition) {
  Offsets<wire::String> axes;
  if (PyTuple_Check(partition.ptr())) {
    for (nb::handle axis : nb::borrow<nb::tuple>(partition))
      axes.push_back(string(axis, "a mesh axis in a PartitionSpec"));
  } else if (PyUnicode_Check(partition.ptr())) {
    axes.push_back(string(partition, "a mesh axis in a PartitionSpec"));
  } else if (!partition.is_none()) {
    refuse("each entry of a PartitionSpec has to be None, the name of a mesh axis or a tuple of names, found " +
               describe(partition),
           Also::type_error);
  }
  const auto names = writer_.offsets<wire::String>(axes);
  return writer_.table<schema::PartitionSpecOneAxis>(
      wire::Table::axis, {names.o}, [&] { return schema::CreatePartitionSpecOneAxis(writer_.fbb(), names); });
}

OffsetVector<wire::String> Encoder::axis_set(nb::handle names) {
  std::vector<std::string_view> sorted;  // views into strings that the set keeps alive
  for (nb::handle name : names) sorted.push_back(utf8(name, "a reduced or unreduced mesh axis"));
  std::ranges::sort(sorted);
  Offsets<wire::String> offsets;
  for (std::string_view name : sorted) offsets.push_back(writer_.string(name));
  return writer_.offsets<wire::String>(offsets);
}

nb::object Decoder::partition_spec(const schema::PartitionSpec& spec, const wire::Path& where) {
  const auto [object, is_new] = specs_.insert(position(spec));
  if (!is_new) return object;
  const nb::object partitions = tuple_of(
      spec.partitions(), [&](const schema::PartitionSpecOneAxis& axis, std::uint32_t) { return one_axis(axis); });
  const nb::object reduced = owned(PyFrozenSet_New(strings(spec.reduced()).ptr()));
  const nb::object unreduced = owned(PyFrozenSet_New(strings(spec.unreduced()).ptr()));
  return object = reading(where, "axes that make a PartitionSpec", [&] {
           return jax_.PartitionSpec(*partitions, nb::arg("reduced") = reduced, nb::arg("unreduced") = unreduced);
         });
}

nb::object Decoder::one_axis(const schema::PartitionSpecOneAxis& axis) {
  switch (wire::Values::length(axis.axes())) {
    case 0: return nb::none();
    case 1: return string(*axis.axes()->Get(0));
    default: return strings(axis.axes());
  }
}

}  // namespace jaxexp::bindings
