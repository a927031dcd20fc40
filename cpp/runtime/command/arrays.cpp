// Files stay in memory while arrays are views of them.
#include "runtime/command/arrays.h"

#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "runtime/npy/npy.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::command {
namespace {

using File = std::shared_ptr<const wire::FileBytes>;

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

/// What was found for an argument.
struct Input {
  File file;
  npy::Item item;
};

File open(const std::string& name) {
  try {
    return std::make_shared<const wire::FileBytes>(name, wire::FileBytes::Reading::at_once,
                                                   std::numeric_limits<std::uint64_t>::max());
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), name);
  }
}

/// Runs a reader of a file, whose errors get the file's name.
template <class Read>
auto reading(const std::string& name, const Read& read) {
  try {
    return read();
  } catch (const npy::NpyError& error) {
    refuse(name + " cannot be read: " + error.what());
  }
}

Array array(const Input& input, const Value& value) {
  std::string dtype = input.item.dtype;
  if (dtype.empty()) dtype = value.dtype;  // NumPy does not say which; as many bytes have to fit
  std::shared_ptr<const void> data(input.file, input.item.data.data());
  if (input.item.is_fortran_order) {
    auto numbers = std::make_shared<const std::vector<std::uint8_t>>(npy::row_major(input.item));
    data = {numbers, numbers->data()};
  }
  Array made(dtype, input.item.shape, std::move(data));
  if (made.size_bytes() != input.item.data.size())
    refuse(value.path + " is " + value.str() + ", and not of numbers of " + std::to_string(input.item.item_bytes) +
           " bytes");
  return made;
}

class Inputs {
 public:
  explicit Inputs(const std::vector<Value>& values) : values_(values), found_(values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) index_[values[i].path] = i;
  }

  void add(std::size_t index, Input input, const std::string& where) {
    if (index >= found_.size())
      refuse("the function takes " + std::to_string(found_.size()) + " arguments; " + where + " is one more");
    if (found_[index]) refuse(where + " gives " + values_[index].path + " a second time");
    found_[index] = std::move(input);
  }

  std::size_t index(const std::string& path, const std::string& where) const {
    const auto found = index_.find(path);
    if (found == index_.end()) refuse(where + ": the function has no argument " + path);
    return found->second;
  }

  void add_npz(const std::string& name) {
    const File file = open(name);
    const auto items = reading(name, [&] { return npy::read_npz(file->bytes()); });
    for (const auto& [member, item] : items) {
      const std::string where = name + ", '" + member.substr(0, 80) + "'";
      const bool is_positional = member.starts_with(prefix) && !index_.contains(member);
      add(is_positional ? position(member, where) : index(member, where), {file, item}, where);
    }
  }

  void add_npy(std::size_t index, const std::string& name) {
    const File file = open(name);
    add(index, {file, reading(name, [&] { return npy::read_npy(file->bytes()); })}, name);
  }

  std::vector<Array> arrays() const {
    std::vector<Array> arrays;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i]) refuse("no file gives " + values_[i].path + ", " + values_[i].str());
      arrays.push_back(array(*found_[i], values_[i]));
    }
    return arrays;
  }

 private:
  static constexpr std::string_view prefix = "arr_";  // as np.savez names what has no name

  static std::size_t position(const std::string& member, const std::string& where) {
    std::size_t index = 0;
    const char* const end = member.data() + member.size();
    const auto [rest, error] = std::from_chars(member.data() + prefix.size(), end, index);
    if (error != std::errc{} || rest != end) refuse(where + " names no argument");
    return index;
  }

  const std::vector<Value>& values_;
  std::map<std::string, std::size_t> index_;
  std::vector<std::optional<Input>> found_;
};

std::string npy_file(const Array& array) {
  const std::size_t item_bytes = array.size() == 0 ? 0 : array.size_bytes() / array.size();
  std::string file = npy::npy_head(array.dtype(), item_bytes, array.shape());
  const std::size_t head = file.size();
  file.resize(head + array.size_bytes());
  array.copy_to(file.data() + head);
  return file;
}

}  // namespace

std::vector<Array> read_arguments(const Arguments& arguments, const std::vector<Value>& values) {
  Inputs inputs(values);
  std::size_t position = 0;
  for (const std::string& name : arguments.inputs) {
    if (name.ends_with(".npz"))
      inputs.add_npz(name);
    else
      inputs.add_npy(position++, name);
  }
  for (const auto& [path, name] : arguments.named_inputs)
    inputs.add_npy(inputs.index(path, "--argument " + path + "=" + name), name);
  return inputs.arrays();
}

void write_results(const std::string& file, const std::vector<Array>& results, const Artifact& function) {
  std::string bytes;
  if (file.ends_with(".npy")) {
    if (results.size() != 1)
      refuse("there are " + std::to_string(results.size()) + " results, and " + file + " holds one: name a .npz file");
    bytes = npy_file(results.front());
  } else {
    const auto values = function.results();
    std::vector<std::pair<std::string, std::string>> files;
    for (std::size_t i = 0; i < results.size(); ++i) files.emplace_back(values[i].path, npy_file(results[i]));
    bytes = reading(file, [&] { return npy::npz(files); });
  }
  errno = 0;
  std::ofstream stream(file, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) throw std::system_error(errno == 0 ? EIO : errno, std::generic_category(), file);
}

}  // namespace jaxexp::command
