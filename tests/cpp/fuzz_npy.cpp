// Fuzz target: files of NumPy. What is read lies inside the file and fits its shape, and is read again after it was
// written again.
#include <string>
#include <vector>

#include "runtime/npy/npy.h"
#include "target.h"

namespace {

using namespace jaxexp;

std::size_t count(const npy::Item& item) {
  std::size_t product = 1;
  for (const std::int64_t size : item.shape) {
    tests::require(size >= 0, "sizes are not negative");
    if (size == 0) return 0;
  }
  for (const std::int64_t size : item.shape) product *= static_cast<std::size_t>(size);
  return product;
}

void check(const npy::Item& item, std::span<const std::uint8_t> file) {
  tests::require(item.item_bytes > 0 && item.item_bytes <= 16, "numbers have a size");
  tests::require(item.data.size() == count(item) * item.item_bytes, "there are as many numbers as the shape says");
  tests::require(item.data.data() >= file.data() && item.data.data() + item.data.size() <= file.data() + file.size(),
                 "numbers are in the file");
  const auto numbers =
      item.is_fortran_order ? npy::row_major(item) : std::vector<std::uint8_t>(item.data.begin(), item.data.end());
  tests::require(numbers.size() == item.data.size(), "another order has as many numbers");
  std::string written = npy::npy_head(item.dtype, item.item_bytes, item.shape);
  tests::require(written.size() % 64 == 0, "numbers are aligned");
  written.append(numbers.begin(), numbers.end());
  const auto bytes = std::span(reinterpret_cast<const std::uint8_t*>(written.data()), written.size());
  const npy::Item again = npy::read_npy(bytes);
  tests::require(again.dtype == item.dtype && again.shape == item.shape && again.item_bytes == item.item_bytes,
                 "what was written is read again");
}

template <class Read>
void attempt(const Read& read) {
  try {
    read();
  } catch (const npy::NpyError& error) {
    const std::string_view said = error.what();
    tests::require(!said.empty() && said.size() < 1000, "an error says something short");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> file(data, data + size);
  file.shrink_to_fit();
  attempt([&] { check(npy::read_npy(file), file); });
  attempt([&] {
    std::vector<std::pair<std::string, std::string>> files;
    const auto items = npy::read_npz(file);
    for (const auto& [name, item] : items) {
      check(item, file);
      std::string written = npy::npy_head(item.dtype, item.item_bytes, item.shape);
      if (!item.is_fortran_order) written.append(item.data.begin(), item.data.end());
      if (!item.is_fortran_order && name.size() < 1000) files.emplace_back(name, written);
    }
    const std::string written = npy::npz(files);
    const auto again = npy::read_npz({reinterpret_cast<const std::uint8_t*>(written.data()), written.size()});
    tests::require(again.size() == files.size(), "all arrays are read again");
  });
  return 0;
}
