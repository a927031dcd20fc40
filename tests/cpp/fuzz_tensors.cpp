// Headers and indices of files of tensors: what is accepted has tensors that fill the file, and texts that are UTF-8.
#include <string>
#include <vector>

#include "errors.h"
#include "wire/tensors/header.h"
#include "wire/tensors/mapped_file.h"

namespace {

using namespace jaxexp;

void check(const wire::Header& header, std::size_t size) {
  std::uint64_t end = 0;
  for (const wire::Tensor& tensor : header.tensors) {
    tests::require(tensor.start == end && tensor.end >= end, "tensors lie one behind the other");
    end = tensor.end;
    tests::require(wire::size_of_tensor(tensor.dtype, tensor.shape) == tensor.end - tensor.start,
                   "a tensor has the size of its shape");
    tests::require(tests::is_utf8(tensor.name), "a name is UTF-8");
    tests::require(tensor.name != "__metadata__", "metadata is no tensor");
    tests::require(tensor.shape.size() <= wire::max_tensor_rank, "ranks are limited");
  }
  tests::require(header.size + end == size, "tensors fill the file");
  for (const auto& [key, value] : header.metadata)
    tests::require(tests::is_utf8(key) && tests::is_utf8(value), "metadata is UTF-8");
}

void check_name(const std::string& name) {
  try {
    wire::check_tensors_name(name);
  } catch (const wire::Error&) {
    return;
  }
  tests::require(name.find('/') == name.npos && name.find('\\') == name.npos && name.find('\0') == name.npos &&
                     name.size() <= 255 && name.ends_with(".safetensors"),
                 "a plain name leads nowhere else");
  tests::require(wire::second_name(name, "00").ends_with(".00.safetensors"), "it has a second name");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> file(data, data + size);
  file.shrink_to_fit();
  tests::attempt([&] { check(wire::read_header(file, file.size()), file.size()); });
  tests::attempt([&] {
    for (const auto& [tensor, name] : wire::read_weight_map(file)) {
      tests::require(tests::is_utf8(tensor) && tests::is_utf8(name), "names are UTF-8");
      check_name(name);
    }
  });
  // The length of a header says little: the rest as a header of the length that it has.
  std::vector<std::uint8_t> whole(8 + size);
  for (std::size_t i = 0; i < 8; ++i) whole[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(size) >> 8 * i);
  std::copy(file.begin(), file.end(), whole.begin() + 8);
  tests::attempt([&] { check(wire::read_header(whole, whole.size()), whole.size()); });
  return 0;
}
