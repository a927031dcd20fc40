// Weights between tuples of Python and a trailer.
#include "bindings/artifact/weights.h"

#include <nanobind/stl/string.h>

#include <string>

#include "bindings/base/digest.h"
#include "bindings/base/text.h"
#include "wire/artifact/stored_digest.h"

namespace jaxexp::bindings {

wire::Weights to_weights(nb::handle lists) {
  wire::Weights weights;
  for (nb::handle file : lists[0])
    weights.files.push_back(
        {nb::cast<std::string>(file[0]), nb::cast<std::uint64_t>(file[1]), to_digest(nb::object(file[2]))});
  for (nb::handle tensor : lists[1])
    weights.tensors.push_back({nb::cast<std::string>(tensor[0]), nb::cast<std::uint32_t>(tensor[1]),
                               nb::cast<std::uint64_t>(tensor[2]), to_digest(nb::object(tensor[3]))});
  for (nb::handle other : lists[2])
    weights.other_names.push_back({nb::cast<std::string>(other[0]), nb::cast<std::uint32_t>(other[1])});
  return weights;
}

nb::tuple from_weights(const wire::schema::Weights& weights) {
  nb::list files, tensors, others;
  for (const auto* file : *weights.files())
    files.append(
        nb::make_tuple(text(file->name()->string_view()), file->size(), to_bytes(wire::stored(*file->content()))));
  for (const auto* tensor : *weights.tensors())
    tensors.append(nb::make_tuple(text(tensor->name()->string_view()), tensor->file(), tensor->size(),
                                  to_bytes(wire::stored(*tensor->digest()))));
  for (std::uint32_t i = 0; i < wire::count_of_other_names(weights); ++i) {
    const auto& other = *weights.other_names()->Get(i);
    others.append(nb::make_tuple(text(other.name()->string_view()), other.tensor()));
  }
  return nb::make_tuple(files, tensors, others);
}

}  // namespace jaxexp::bindings
