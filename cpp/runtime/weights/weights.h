// The weights of a function: the arrays that it takes first, wherever they are.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "jaxexp/artifact.h"
#include "runtime/array/numbers.h"
#include "runtime/signature/parameter.h"
#include "runtime/weights/files.h"

namespace jaxexp::runtime {

/// Files are opened when the numbers are first asked for; at once, where they are checked. May be used by several
/// threads at once.
class HostWeights {
 public:
  /// Those that the artifact names: in its archive, whose memory `owner` keeps, or in files beside `file`, which are
  /// opened as `opening` says. Null where it names none, or they are neither in an archive nor beside a file. Throws
  /// DeserializationError, RunError where a shape is not constant, and what a check throws.
  static std::shared_ptr<const HostWeights> of(const Artifact& artifact, const std::vector<Parameter>& arguments,
                                               const std::shared_ptr<const void>& owner,
                                               const std::filesystem::path& file, const Opening& opening);
  /// Those of the same names in another file of tensors or index. Throws as `of` does, and RunError where the function
  /// takes no weights.
  static std::shared_ptr<const HostWeights> named(const Artifact& artifact, const std::vector<Parameter>& arguments,
                                                  const std::filesystem::path& weights, const Opening& opening);

  const std::vector<std::string>& names() const { return names_; }
  std::size_t size() const { return names_.size(); }

  /// In host memory, for each of the first arguments one. Throws WeightsError.
  const std::vector<Numbers>& numbers() const;

 private:
  struct Type {
    const ElementType* type;
    Shape shape;
  };
  using Find = std::function<std::vector<FoundTensor>()>;

  HostWeights(std::vector<std::string> names, const std::vector<Parameter>& arguments, Find find);
  /// With `is_now`, looks for them now, and never again.
  static std::shared_ptr<const HostWeights> made(std::vector<std::string> names,
                                                 const std::vector<Parameter>& arguments, Find find, bool is_now);

  std::vector<std::string> names_;
  std::vector<Type> types_;
  Find find_;
  mutable std::mutex mutex_;
  mutable std::vector<Numbers> numbers_;
};

}  // namespace jaxexp::runtime
