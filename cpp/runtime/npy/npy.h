// Arrays in files of NumPy: .npy, and .npz without compression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jaxexp::npy {

/// All that is thrown about files; the message names no file.
class NpyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Views into the file.
struct Item {
  /// As JAX names it. NumPy writes bfloat16 and other dtypes of ml_dtypes as bytes: then it is empty.
  std::string dtype;
  std::size_t item_bytes = 0;
  std::vector<std::int64_t> shape;
  bool is_fortran_order = false;
  std::span<const std::uint8_t> data;
};

/// Reads an array. Throws NpyError. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
Item read_npy(std::span<const std::uint8_t> file);

/// Reads the arrays of a .npz file, by their names without ".npy", in the order of the file. Throws NpyError, also for
/// members that are compressed. Takes time in proportion to the file.
std::vector<std::pair<std::string, Item>> read_npz(std::span<const std::uint8_t> file);

/// The numbers of an array that is in Fortran's order, row-major.
std::vector<std::uint8_t> row_major(const Item& item);

/// What stands before the numbers of an array in a .npy file. dtypes that NumPy does not have are written as bytes.
/// Whether NumPy's files have a name for a dtype. They hold those of ml_dtypes as bytes.
bool has_name(std::string_view dtype);

std::string npy_head(std::string_view dtype, std::size_t item_bytes, const std::vector<std::int64_t>& shape);

/// A .npz file of these .npy files, by their names without ".npy".
std::string npz(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace jaxexp::npy
