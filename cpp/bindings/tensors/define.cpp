// Tensors are tuples: Python makes objects of them.
#include "bindings/base/define.h"

#include <utility>
#include <vector>

#include "bindings/base/buffer.h"
#include "bindings/base/objects.h"
#include "wire/tensors/header.h"

namespace jaxexp::bindings {
namespace {

nb::typed<nb::dict, nb::str, nb::str> to_dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  nb::dict dict = new_dict();
  for (const auto& [name, value] : entries) dict[text(name)] = text(value);
  return dict;
}

nb::tuple read(nb::handle head, std::uint64_t file_size) {
  const Buffer buffer(head);
  const wire::Header header = over(buffer.bytes().size(), [&] { return wire::read_header(buffer.bytes(), file_size); });
  nb::list tensors = new_list();
  for (const wire::Tensor& tensor : header.tensors)
    tensors.append(nb::make_tuple(text(tensor.name), text(tensor.dtype), nb::tuple(nb::cast(tensor.shape)),
                                  tensor.start, tensor.end));
  return nb::make_tuple(tensors, to_dict(header.metadata), header.size);
}

}  // namespace

void define_tensors(nb::module_& m) {
  m.attr("MAX_TENSORS_HEADER_SIZE") = wire::max_header_size;
  m.attr("MAX_TENSORS_INDEX_SIZE") = wire::max_index_size;
  m.attr("MAX_TENSOR_RANK") = wire::max_tensor_rank;
  m.def(
      "tensor_dtypes",
      [] {
        nb::typed<nb::dict, nb::str, int> bits = new_dict();
        for (const wire::TensorDtype& dtype : wire::tensor_dtypes()) bits[text(dtype.name)] = dtype.bits;
        return bits;
      },
      "The dtypes of safetensors files, and how many bits an element of each takes.");
  m.def(
      "size_of_tensors_header",
      [](HasBuffer first_bytes, std::uint64_t file_size) {
        return wire::size_of_header(Buffer(first_bytes).bytes(), file_size);
      },
      "first_bytes"_a, "file_size"_a,
      "How many bytes the header of a safetensors file takes with its length, which is in the first eight bytes.");
  m.def(
      "read_tensors_header", &read, "head"_a, "file_size"_a,
      nb::sig("def read_tensors_header(head: typing_extensions.Buffer, file_size: int) -> "
              "tuple[list[tuple[str, str, tuple[int, ...], int, int]], dict[str, str], int]"),
      "The tensors of a safetensors file in the order of their positions (name, dtype, shape, start, end), its metadata, "
      "and the size of its header with the length.");
  m.def(
      "read_weight_map",
      [](HasBuffer index) {
        const Buffer buffer(index);
        return to_dict(over(buffer.bytes().size(), [&] { return wire::read_weight_map(buffer.bytes()); }));
      },
      "index"_a, "Which file each tensor is in, as the index of several safetensors files says.");
}

}  // namespace jaxexp::bindings
