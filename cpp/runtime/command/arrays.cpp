// Files stay in memory while arrays are views of them.
#include "runtime/command/arrays.h"

#include <cerrno>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "runtime/api/given.h"
#include "runtime/npy/npy.h"
#include "wire/base/file_error.h"

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

Array array(const File& file, const npy::Item& item, const Value& value) {
  const std::string& dtype = item.dtype.empty() ? value.dtype : item.dtype;  // as many bytes have to fit
  std::shared_ptr<const void> data(file, item.data.data());
  if (item.is_fortran_order) {
    auto numbers = std::make_shared<const std::vector<std::uint8_t>>(npy::row_major(item));
    data = {numbers, numbers->data()};
  }
  Array made(dtype, item.shape, std::move(data));
  if (made.size_bytes() != item.data.size())
    refuse(value.path + " is " + value.str() + ", and not of numbers of " + std::to_string(item.item_bytes) + " bytes");
  return made;
}

class Inputs {
 public:
  Inputs(const std::vector<Value>& values, bool is_vjp) : values_(values), found_(values.size()), is_vjp_(is_vjp) {
    for (std::size_t i = 0; i < values.size(); ++i) index_[values[i].path] = i;
  }

  void add(std::size_t index, const File& file, const npy::Item& item, const std::string& where) {
    if (found_[index]) refuse(where + " gives " + values_[index].path + " a second time");
    found_[index] = array(file, item, values_[index]);
  }

  std::size_t index(const std::string& path, const std::string& where) const {
    const auto found = index_.find(path);
    if (found == index_.end())
      refuse(where + ": the function has no argument " + path +
             (is_vjp_
                  ? "; a VJP's are args[0], args[1], ...: those of the function, then the cotangents of its results" +
                        std::string(" ('--inspect --vjp N' lists them)")
                  : " ('--inspect' lists those that it has)"));
    return found->second;
  }

  /// Positions count from now on the arguments that have not been given yet.
  void number_the_rest() {
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (!found_[i]) positions_.push_back(i);
  }

  std::size_t at_position(std::size_t position, const std::string& where) const {
    if (position < positions_.size()) return positions_[position];
    const std::size_t given = found_.size() - positions_.size();
    refuse("the function takes " + std::to_string(found_.size()) + (found_.size() == 1 ? " argument" : " arguments") +
           (given > 0 ? ", of which --argument gives " + std::to_string(given) : "") + "; " + where + " is one more");
  }

  void add_npz(const std::string& name) {
    const File file = runtime::opened(name);
    const auto items = reading(name, [&] { return npy::read_npz(file->bytes()); });
    for (const auto& [member, item] : items) {
      const std::string where = name + ", '" + member.substr(0, 80) + "'";
      const bool is_positional = member.starts_with(prefix) && !index_.contains(member);
      add(is_positional ? at_position(position(member, where), where) : index(member, where), file, item, where);
    }
  }

  void add_npy(std::size_t index, const std::string& name) {
    const File file = runtime::opened(name);
    add(index, file, reading(name, [&] { return npy::read_npy(file->bytes()); }), name);
  }

  std::vector<Array> arrays() const {
    std::vector<Array> arrays;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i]) refuse("no file gives " + values_[i].path + ", " + values_[i].str());
      arrays.push_back(*found_[i]);
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
  std::vector<std::optional<Array>> found_;
  bool is_vjp_;
  std::vector<std::size_t> positions_;  // the arguments that inputs without a path are
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
  Inputs inputs(values, arguments.vjp_order > 0);
  for (const auto& [path, name] : arguments.named_inputs)
    inputs.add_npy(inputs.index(path, "--argument " + path + "=" + name), name);
  inputs.number_the_rest();
  std::size_t position = 0;
  for (const std::string& name : arguments.inputs) {
    if (name.ends_with(".npz"))
      inputs.add_npz(name);
    else
      inputs.add_npy(inputs.at_position(position++, name), name);
  }
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
    bytes = npy::npz(files);
  }
  errno = 0;
  std::ofstream stream(file, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) throw wire::file_error(errno == 0 ? EIO : errno, file);
}

}  // namespace jaxexp::command
