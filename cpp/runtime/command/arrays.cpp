// Files stay in memory while arrays are views of them.
#include "runtime/command/arrays.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/api/array.h"
#include "runtime/command/arguments.h"
#include "runtime/npy/npy.h"
#include "wire/base/error.h"
#include "wire/compiled/written_file.h"

namespace jaxexp::command {
namespace {

using File = std::shared_ptr<const wire::FileBytes>;

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

/// Runs a reader of a file, whose errors get the file's name.
template <class Read>
auto reading(const std::string& name, const Read& read) {
  try {
    return read();
  } catch (const npy::NpyError& error) {
    refuse(name + " cannot be read: " + error.what());
  }
}

/// Whether bytes are numbers of a dtype of less than a byte each; any bytes may be numbers of others.
bool are_numbers(std::span<const std::uint8_t> bytes, std::string_view dtype) {
  const bool is_float = dtype == "float4_e2m1fn", is_signed = dtype.starts_with("int");
  const int bits = is_float || dtype.ends_with("int4") ? 4 : dtype.ends_with("int2") ? 2 : 8;
  return std::ranges::all_of(bytes, [&](std::uint8_t byte) {
    const int number = static_cast<std::int8_t>(byte);
    return bits == 8 || byte < 1 << bits || (is_signed && number < 0 && number >= -(1 << (bits - 1)));
  });
}

Array array(const File& file, const npy::Item& item, const Value& value) {
  const auto differs = [&](const std::string& found) {
    refuse(value.path + " is " + value.str() + ", and not " + found);
  };
  if (item.dtype.empty() && (npy::has_name(value.dtype) || !are_numbers(item.data, value.dtype)))
    differs("the bytes of another dtype");
  const std::string& dtype = item.dtype.empty() ? value.dtype : item.dtype;  // as many bytes have to fit
  std::shared_ptr<const void> data(file, item.data.data());
  if (item.is_fortran_order) {
    auto numbers = std::make_shared<const std::vector<std::uint8_t>>(npy::row_major(item));
    data = {numbers, numbers->data()};
  }
  Array made(dtype, item.shape, std::move(data));
  if (made.size_bytes() != item.data.size()) differs("of numbers of " + std::to_string(item.item_bytes) + " bytes");
  return made;
}

constexpr std::string_view unnamed = "arr_";  // as np.savez names what has no name, with its number

class Inputs {
 public:
  Inputs(const std::vector<Value>& values, bool is_vjp) : values_(values), found_(values.size()), is_vjp_(is_vjp) {
    std::set<std::string> ambiguous;  // long paths are cut
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!index_.emplace(values[i].path, i).second) ambiguous.insert(values[i].path);
    for (std::size_t i = 0; i < values.size(); ++i) {  // a shell takes quotes away: args[0]['w'] arrives as args[0][w]
      std::string unquoted = values[i].path;
      std::erase(unquoted, '\'');
      if (unquoted != values[i].path && !index_.emplace(unquoted, i).second) ambiguous.insert(unquoted);
    }
    for (const std::string& path : ambiguous) index_.erase(path);
  }

  /// Takes PATH=INPUT; says whether it is one.
  bool add_named(const std::string& text) {
    std::size_t at = text.find('=');
    for (; at != text.npos; at = text.find('=', at + 1))
      if (index_.contains(text.substr(0, at))) break;
    std::error_code ignored;
    const bool is_path =
        text.starts_with("args[") || text.starts_with("kwargs[") || !std::filesystem::exists(text, ignored);
    if (at == text.npos && is_path) at = text.rfind('=');
    if (at == text.npos) return false;
    const std::string path = text.substr(0, at);
    const auto found = index_.find(path);
    if (found == index_.end())
      throw InputError(
          text + ": the function has no argument " + path +
          (is_vjp_ ? "; a VJP's are args[0], args[1], ...: those of the function, then the cotangents of its results"
                     " ('--inspect --vjp N' lists them)"
                   : " ('--inspect' lists those that it has)"));
    add_input(found->second, text.substr(at + 1), text);
    return true;
  }

  void add(std::size_t index, Array array, const std::string& where) {
    if (found_[index]) throw InputError(where + " gives " + values_[index].path + " a second time");
    found_[index] = std::move(array);
  }

  /// The arguments that have not been given yet.
  std::vector<std::size_t> rest() const {
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (!found_[i]) left.push_back(i);
    return left;
  }

  std::size_t at(const std::vector<std::size_t>& left, std::size_t position, const std::string& where) const {
    if (position < left.size()) return left[position];
    throw InputError("the function takes " + std::to_string(found_.size()) +
                     (found_.size() == 1 ? " argument; " : " arguments; ") + where + " is one more");
  }

  void add_npz(const std::string& name) {
    const auto left = rest();
    const File file = runtime::opened(name);
    const auto items = reading(name, [&] { return npy::read_npz(file->bytes()); });
    for (const auto& [member, item] : items) {
      const std::string where = name + ", '" + member.substr(0, 80) + "'";
      const auto named = index_.find(member);
      const std::size_t i = named == index_.end() ? at(left, position(member, where), where) : named->second;
      add(i, array(file, item, values_[i]), where);
    }
  }

  /// Of a file, or a number if the argument is a scalar.
  void add_input(std::size_t index, const std::string& text, const std::string& where) {
    const Value& value = values_[index];
    if (value.shape.empty() && !text.ends_with(".npy")) return add(index, scalar(text, value), where);
    std::error_code ignored;
    if (!text.ends_with(".npy") && !std::filesystem::exists(text, ignored)) refuse_input(text, value);
    const File file = runtime::opened(text);
    add(index, array(file, reading(text, [&] { return npy::read_npy(file->bytes()); }), value), where);
  }

  std::vector<Array> arrays() const {
    std::vector<Array> arrays;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i]) throw InputError("no file gives " + values_[i].path + ", " + values_[i].str());
      arrays.push_back(*found_[i]);
    }
    return arrays;
  }

 private:
  static std::size_t position(const std::string& member, const std::string& where) {
    std::size_t index = 0;
    const char* const end = member.data() + member.size();
    const auto [rest, error] = std::from_chars(member.data() + std::min(unnamed.size(), member.size()), end, index);
    if (!member.starts_with(unnamed) || error != std::errc{} || rest != end)
      refuse(where + " names no argument ('--inspect' lists them)");
    return index;
  }

  const std::vector<Value>& values_;
  std::map<std::string, std::size_t> index_;
  std::vector<std::optional<Array>> found_;
  bool is_vjp_;
};

}  // namespace

std::vector<Array> read_arguments(const Arguments& arguments, const std::vector<Value>& values) {
  Inputs inputs(values, arguments.vjp_order > 0);
  std::vector<std::string> in_order;
  for (const std::string& text : arguments.inputs)
    if (!inputs.add_named(text)) in_order.push_back(text);
  for (const std::string& text : in_order) {
    if (text.ends_with(".npz"))
      inputs.add_npz(text);
    else
      inputs.add_input(inputs.at(inputs.rest(), 0, text), text, text);
  }
  return inputs.arrays();
}

std::string npy_file(const Array& array) {
  static constexpr std::uint64_t number[2] = {};  // as large as any
  const Array one(array.dtype(), {1}, std::shared_ptr<const void>(std::shared_ptr<const void>(), number));
  const std::size_t item_bytes = one.size_bytes();
  std::string file = npy::npy_head(array.dtype(), item_bytes, array.shape());
  const std::size_t head = file.size();
  file.resize(head + array.size_bytes());
  array.copy_to(file.data() + head);
  return file;
}

std::vector<std::string> result_names(const std::vector<Value>& results) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const Value& value : results) {
    const bool is_free = taken.insert(value.path).second;  // a number names the others to readers of .npz files, too
    names.push_back(is_free ? value.path : std::string(unnamed) + std::to_string(names.size()));
  }
  return names;
}

void write_file(const std::string& file, const std::string& bytes) {
#ifndef _WIN32
  namespace fs = std::filesystem;
  try {
    if (!fs::exists(file) || fs::is_regular_file(file)) {
      const fs::path target = fs::weakly_canonical(file);  // a link stays
      const wire::TemporaryName temporary(target.parent_path());
      wire::WrittenFile(temporary.path(), O_CREAT | O_EXCL).write(bytes);
      return fs::rename(temporary.path(), target);
    }
  } catch (const std::system_error& error) {
    throw wire::file_error(error.code(), file);
  }
#endif
  errno = 0;
  std::ofstream stream(file, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) throw wire::file_error(errno == 0 ? EIO : errno, file);
}

std::size_t write_results(const std::string& file, const std::vector<Array>& results, const Artifact& function) {
  std::string bytes;
  if (file.ends_with(".npy")) {
    if (results.size() != 1)
      refuse("there are " + std::to_string(results.size()) + " results, and " + file + " holds one: name a .npz file");
    bytes = npy_file(results.front());
  } else {
    const std::vector<std::string> names = result_names(function.results());
    std::vector<std::pair<std::string, std::string>> files;
    for (std::size_t i = 0; i < results.size(); ++i) files.emplace_back(names[i], npy_file(results[i]));
    bytes = npy::npz(files);
  }
  write_file(file, bytes);
  return bytes.size();
}

}  // namespace jaxexp::command
