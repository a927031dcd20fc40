// A file of tensors holds what it has no dtype for as another one: docs/formats/weights.md has the table.
#include "runtime/weights/weights.h"

#include <system_error>
#include <utility>

#include "jaxexp/run_error.h"
#include "jaxexp/weights_error.h"
#include "wire/base/error.h"

namespace jaxexp {

WeightsError::WeightsError(std::string file, std::string tensor, std::string expected, std::string found)
    : DeserializationError("cannot read the weights '" + file +
                               "': " + (tensor.empty() ? "" : "tensor '" + tensor + "': ") + "expected " + expected +
                               ", found " + found,
                           tensor, expected, found),
      file_(std::move(file)) {}

namespace runtime {
namespace {

struct Held {
  std::string_view dtype;
  Shape shape;
};

Held held_as(const ElementType& type, const Shape& shape) {
  Held held{type.in_files, shape};
  if (type.name == "complex128") held.shape.push_back(2);
  if (held.dtype == "F4" && count(shape) % 2 != 0) held.dtype = "U8";
  return held;
}

/// What the numbers of a tensor are that has the right type in its file, by JAX's name. A file that an artifact was
/// saved with has the dtypes of its arguments; another one says it if it has them under the names of others.
std::string_view dtype_of(const FoundTensor& tensor, const ElementType& needed) {
  if (!tensor.of) return needed.name;
  if (const ElementType* const said = element_type(*tensor.of))
    if (tensor.type.dtype == (said->in_files == "F4" ? "U8" : said->in_files)) return said->name;
  return tensor.type.dtype == "I8" ? "int8" : tensor.type.dtype == "U8" ? "uint8" : needed.name;
}

/// Two elements of four bits in a byte as an element in each byte; the first one is in the lower bits.
std::shared_ptr<const void> unpacked(std::span<const std::uint8_t> pairs) {
  auto numbers = std::make_shared<std::vector<std::uint8_t>>();
  numbers->reserve(2 * pairs.size());
  for (const std::uint8_t pair : pairs) {
    numbers->push_back(pair & 15);
    numbers->push_back(pair >> 4);
  }
  return {numbers, numbers->data()};
}

/// The name itself where it is empty, or nobody knows the process's folder: opening it says what is wrong.
std::filesystem::path from_the_root(const std::filesystem::path& file) {
  std::error_code error;
  auto found = std::filesystem::absolute(file, error);
  return error ? file : found;
}

std::vector<std::string> names_of(const Artifact& artifact) {
  const auto names = artifact.names_of_first_argument();
  return {names.begin(), names.end()};
}

}  // namespace

HostWeights::HostWeights(std::vector<std::string> names, const std::vector<Parameter>& arguments, Find find)
    : names_(std::move(names)), find_(std::move(find)) {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const Parameter& argument = arguments[i];
    if (argument.is_symbolic())
      throw RunError(RunError::Reason::unsupported,
                     argument.path + " is " + argument.str() + ", and weights have constant shapes");
    types_.push_back({argument.type, argument.shape({})});
  }
}

std::shared_ptr<const HostWeights> HostWeights::of(const Artifact& artifact, const std::vector<Parameter>& arguments,
                                                   const std::shared_ptr<const void>& owner,
                                                   const std::filesystem::path& file, const Opening& opening) {
  const auto weights = artifact.weights();
  if (!weights || weights->tensors.empty()) return nullptr;
  Find find;
  if (weights->is_in_archive()) {
    find = [weights, owner] { return find_in_archive(*weights, owner); };
  } else if (file.empty()) {
    return nullptr;
  } else {
    find = [artifact, path = from_the_root(file), opening] { return find_beside(path, *artifact.weights(), opening); };
  }
  return made(names_of(artifact), arguments, std::move(find), opening.check != nullptr);
}

std::shared_ptr<const HostWeights> HostWeights::named(const Artifact& artifact, const std::vector<Parameter>& arguments,
                                                      const std::filesystem::path& weights, const Opening& opening) {
  std::vector<std::string> names = names_of(artifact);
  if (names.empty())
    throw RunError(RunError::Reason::argument, std::string(artifact.function_name()) +
                                                   " takes no weights: its first argument is not a dict of arrays");
  std::vector<std::pair<std::string, std::size_t>> others;
  if (const auto stored = artifact.weights())
    for (const Weights::OtherName& other : stored->other_names) others.emplace_back(other.name, other.tensor);
  Find find = [names, others, path = from_the_root(weights), opening] {
    return find_named(path, names, others, opening);
  };
  return made(std::move(names), arguments, std::move(find), opening.check != nullptr);
}

std::shared_ptr<const HostWeights> HostWeights::made(std::vector<std::string> names,
                                                     const std::vector<Parameter>& arguments, Find find, bool is_now) {
  std::shared_ptr<HostWeights> weights(new HostWeights(std::move(names), arguments, std::move(find)));
  if (is_now) {
    static_cast<void>(weights->numbers());
    weights->find_ = nullptr;  // with the check, which may not outlive the load
  }
  return weights;
}

const std::vector<Numbers>& HostWeights::numbers() const {
  const std::lock_guard lock(mutex_);
  if (numbers_.size() == names_.size()) return numbers_;
  std::vector<Numbers> numbers;
  const std::vector<FoundTensor> tensors = find_();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const FoundTensor& tensor = tensors[i];
    const auto& [type, shape] = types_[i];
    const Held needed = held_as(*type, shape);
    const bool is_untyped = tensor.type.dtype.empty();
    if (is_untyped ? tensor.bytes.size() != wire::size_of_tensor(needed.dtype, needed.shape)
                   : tensor.type.dtype != needed.dtype || tensor.type.shape != needed.shape) {
      const wire::Tensor expected{{}, needed.dtype, needed.shape, 0, 0};
      std::string found = is_untyped ? std::to_string(tensor.bytes.size()) + " bytes" : tensor.type.str();
      if (!is_untyped && tensor.type.shape == needed.shape)
        found += ", which a session does not cast: store it as " + std::string(needed.dtype);
      throw WeightsError(tensor.file, wire::shortened(names_[i]), expected.str(), std::move(found));
    }
    if (const std::string_view of = dtype_of(tensor, *type); of != type->name) {
      const std::string held = tensor.type.str() + " of ";
      throw WeightsError(tensor.file, wire::shortened(names_[i]), held + std::string(type->name),
                         held + std::string(of));
    }
    Numbers made{type, shape, tensor.bytes.data(), tensor.owner, {}};
    if (needed.dtype == "F4") made.owner = unpacked(tensor.bytes), made.data = made.owner.get();
    numbers.push_back(std::move(made));
  }
  numbers_ = std::move(numbers);
  return numbers_;
}

}  // namespace runtime
}  // namespace jaxexp
