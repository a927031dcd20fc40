// A program and its weights cannot be replaced at once: docs/formats/weights.md says where a program looks for its own.
#include "runtime/weights/files.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include "jaxexp/weights_error.h"
#include "wire/base/error.h"
#include "wire/base/other_format.h"
#include "wire/base/text.h"
#include "wire/tensors/mapped_file.h"

namespace jaxexp::runtime {
namespace {

using wire::hexadecimal;
using wire::MappedFile;
using How = MappedFile::How;

/// A file that was opened by the way that `open` is told.
template <class Open>
MappedFile opened(const std::filesystem::path& path, const Opening& opening, const Open& open) {
  MappedFile file = open(opening.stable || opening.check ? How::read : How::mapped);
  if (opening.check) opening.check(path, file.bytes());
  return file;
}

MappedFile opened_named(const std::filesystem::path& path, const Opening& opening) {
  return opened(path, opening, [&](How how) { return MappedFile::named(path, how); });
}

constexpr std::string_view index_suffix = ".safetensors.index.json";

/// Runs what reads a file, whose errors get the file's name.
template <class Read>
auto reading(const std::string& file, const Read& read) {
  try {
    return read();
  } catch (const wire::Error& error) {
    throw WeightsError(file, error.path, error.expected, error.found);
  } catch (const std::system_error& error) {
    throw WeightsError(
        file, "", "a file of tensors (.safetensors), or an index of several (" + std::string(index_suffix) + ")",
        "nothing that can be opened (" + error.code().message() + "): name the file that has the weights");
  }
}

/// Refuses a file of another kind. In a file of tensors, the first eight bytes are a length of at most 16 MiB.
wire::Header header_of(std::span<const std::uint8_t> file) {
  constexpr std::string_view artifact = "jaxe";
  const std::span upper = file.size() < 8 ? file.first(0) : file.subspan(4, 4);
  const bool is_artifact = std::ranges::equal(upper, artifact);
  const std::string_view other = is_artifact ? "an artifact" : wire::other_format(file);
  if (std::ranges::any_of(upper, [](std::uint8_t byte) { return byte != 0; }) && !other.empty())
    throw wire::Error({}, "a safetensors file",
                      "what looks like " + std::string(other) + ": name the file that has the weights");
  return wire::read_header(file, file.size());
}

struct TensorFile {
  TensorFile(std::string name, MappedFile bytes)
      : name(std::move(name)), file(std::move(bytes)), header(header_of(file.bytes())) {
    constexpr std::string_view dtype = "dtype:";
    for (const wire::Tensor& tensor : header.tensors) by_name.emplace(tensor.name, &tensor);
    for (const auto& [key, said] : header.metadata)
      if (key.starts_with(dtype)) dtypes.emplace(std::string_view(key).substr(dtype.size()), said);
  }
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  std::optional<FoundTensor> find(std::string_view tensor_name) const {
    const auto found = by_name.find(tensor_name);
    if (found == by_name.end()) return std::nullopt;
    const wire::Tensor& tensor = *found->second;
    const auto bytes = file.bytes().subspan(header.size + static_cast<std::size_t>(tensor.start),
                                            static_cast<std::size_t>(tensor.end - tensor.start));
    return FoundTensor{name, tensor, bytes, file.owner()};
  }

  std::size_t size() const { return file.bytes().size(); }

  std::string name;
  MappedFile file;
  wire::Header header;
  std::map<std::string_view, const wire::Tensor*> by_name;
  std::map<std::string_view, std::string_view> dtypes;  // what the metadata say of tensors, by their names
};

using File = std::unique_ptr<const TensorFile>;

std::string shown(const std::filesystem::path& path, std::string_view name) {
  return (path.parent_path() / std::filesystem::path(name)).string();
}

/// A file whose name stands in the file at `path`; `size` is what that file says of it, if anything.
File open_beside(const std::filesystem::path& path, std::string_view name, const Opening& opening,
                 std::optional<std::uint64_t> size = {}) {
  reading(path.string(), [&] { wire::check_tensors_name(name); });
  const std::string file = shown(path, name);
  return reading(file, [&] {
    try {
      const auto beside = [&](How how) { return MappedFile::beside(path, name, how, size); };
      return std::make_unique<const TensorFile>(file, opened(file, opening, beside));
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::no_such_file_or_directory) throw;
      const std::string beside = "'" + path.filename().string() + "'";
      throw wire::Error({}, "a file that " + beside + " names",
                        "none of this name: copy it beside " + beside + ", too, or name other weights");
    }
  });
}

bool is_saved_with(const TensorFile& file, const Weights::File& stored) {
  return file.size() == stored.size && file.header.content() == hexadecimal(stored.content);
}

/// The file that an artifact was saved with. Between two steps of saving, or after a process died there, it has only
/// its second name; that is tried again, as the file may have got it in the meantime. A file that is checked has the
/// name under which it was signed.
File open_stored(const std::filesystem::path& artifact, const Weights::File& stored, const Opening& opening) {
  const std::string content = hexadecimal(stored.content);
  const std::string plain(stored.name), second = wire::second_name(plain, content);
  std::vector<std::string> tried;
  if (!opening.check) tried = {second, plain, second};
  for (const std::string& name : tried) {
    try {
      File file = open_beside(artifact, name, opening, stored.size);
      if (is_saved_with(*file, stored)) return file;
    } catch (const WeightsError&) {
      // The last attempt says what is wrong with the file of the plain name.
    }
  }
  File file = open_beside(artifact, plain, opening, stored.size);
  if (!is_saved_with(*file, stored))
    throw WeightsError(file->name, "",
                       "the file that '" + artifact.filename().string() + "' was saved with (" +
                           std::to_string(stored.size) + " bytes, content " + content + ")",
                       "another one (" + std::to_string(file->size()) + " bytes, content " +
                           wire::shortened(file->header.content().value_or("none")) +
                           "): put that file back, or name other weights");
  return file;
}

/// Files with each tensor of them: the first one of its name.
struct Files {
  void add(File file) {
    for (const auto& [name, tensor] : file->by_name) by_tensor.emplace(name, file.get());
    all.push_back(std::move(file));
  }
  std::optional<FoundTensor> find(std::string_view name) const {
    const auto found = by_tensor.find(name);
    if (found == by_tensor.end()) return std::nullopt;
    auto tensor = found->second->find(name);
    const auto of = found->second->dtypes.find(name);
    tensor->of = of == found->second->dtypes.end() ? "" : std::string(of->second);
    return tensor;
  }

  std::vector<File> all;
  std::map<std::string_view, const TensorFile*> by_tensor;
};

Files open_index(const std::filesystem::path& index, const Opening& opening) {
  const auto map = reading(index.string(),
                           [&] { return wire::read_weight_map(opened_named(index, {true, opening.check}).bytes()); });
  std::map<std::string_view, const TensorFile*> by_name;
  Files files;
  for (const auto& [tensor, name] : map) {
    const TensorFile*& file = by_name[name];
    if (!file) {
      files.add(open_beside(index, name, opening));
      file = files.all.back().get();
    }
    if (!file->find(tensor))
      throw WeightsError(index.string(), wire::shortened(tensor), "this tensor in '" + name + "'", "none of this name");
  }
  std::size_t count = 0;
  for (const File& file : files.all) count += file->header.tensors.size();
  if (count != map.size())
    throw WeightsError(index.string(), "", "every tensor of its files, once",
                       std::to_string(map.size()) + " of " + std::to_string(count));
  return files;
}

Files open_named(const std::filesystem::path& path, const Opening& opening) {
  if (path.filename().string().ends_with(index_suffix)) return open_index(path, opening);
  Files files;
  files.add(reading(path.string(),
                    [&] { return std::make_unique<const TensorFile>(path.string(), opened_named(path, opening)); }));
  return files;
}

}  // namespace

std::vector<FoundTensor> find_beside(const std::filesystem::path& artifact, const Weights& weights,
                                     const Opening& opening) {
  std::vector<File> files;
  for (const Weights::File& stored : weights.files) files.push_back(open_stored(artifact, stored, opening));
  std::vector<FoundTensor> tensors;
  for (const Weights::Tensor& stored : weights.tensors) {
    const TensorFile& file = *files[stored.file];
    auto found = file.find(stored.name);
    if (!found || found->bytes.size() != stored.size)
      throw WeightsError(file.name, wire::shortened(stored.name),
                         "a tensor of " + std::to_string(stored.size) + " bytes",
                         found ? found->type.str() : "none of this name");
    tensors.push_back(std::move(*found));
  }
  return tensors;
}

std::vector<FoundTensor> find_in_archive(const Weights& weights, const std::shared_ptr<const void>& archive) {
  std::vector<FoundTensor> tensors;
  for (const Weights::Tensor& stored : weights.tensors) {
    const auto& found = stored.in_archive;
    if (found.data() == nullptr || found.size() != stored.size)
      throw WeightsError(
          "the archive", wire::shortened(stored.name),
          "a tensor of " + std::to_string(stored.size) + " bytes with the digest " + hexadecimal(stored.digest),
          found.data() == nullptr ? "none" : "one of " + std::to_string(found.size()) + " bytes");
    const std::shared_ptr<const void> owner(archive, found.data());
    tensors.push_back({"the archive", {std::string(stored.name), {}, {}, 0, stored.size}, found, owner});
  }
  return tensors;
}

std::vector<FoundTensor> find_named(const std::filesystem::path& file, const std::vector<std::string>& names,
                                    const std::vector<std::pair<std::string, std::size_t>>& other_names,
                                    const Opening& opening) {
  const Files files = open_named(file, opening);
  std::vector<FoundTensor> tensors;
  for (const std::string& name : names) {
    auto found = files.find(name);
    if (!found) throw WeightsError(file.string(), wire::shortened(name), "a tensor of this name", "none");
    tensors.push_back(std::move(*found));
  }
  for (const auto& [other, index] : other_names) {
    const auto found = files.find(other);
    if (found && (found->type.dtype != tensors[index].type.dtype || found->type.shape != tensors[index].type.shape ||
                  !std::ranges::equal(found->bytes, tensors[index].bytes)))
      throw WeightsError(file.string(), wire::shortened(other),
                         "the same as '" + wire::shortened(names[index]) + "', with which it is one weight",
                         "another tensor");
  }
  return tensors;
}

}  // namespace jaxexp::runtime
