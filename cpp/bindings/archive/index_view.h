// An archive's index as Python sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/base/buffer.h"
#include "bindings/base/nanobind.h"
#include "wire/archive/index.h"
#include "wire/archive/member.h"
#include "wire/archive/weights.h"

namespace jaxexp::bindings {

/// Position and size of a member's bytes, and of its modules if they are apart.
using Extent = nb::typed<nb::tuple, int, int, nb::typed<nb::tuple, nb::typed<nb::tuple, int, int>, nb::ellipsis>>;

/// Returns the bytes of ranges, given by position and size.
using ReadMany = nb::typed<nb::callable, std::vector<nb::bytes>(std::vector<std::tuple<std::uint64_t, std::uint64_t>>)>;

using Numbers = Argument<nb::list, int>;

class IndexView {
 public:
  IndexView(HasBuffer index, HasBuffer root, const wire::Digest& root_digest, std::uint64_t end);
  /// Of an index in parts of a file that are fetched by a function.
  IndexView(const ReadMany& read, std::uint64_t position, std::uint64_t size, HasBuffer root,
            const wire::Digest& root_digest);
  /// Of an index in a file, which `owner` is.
  IndexView(const wire::FileBytes& file, nb::handle owner, std::uint64_t position, std::uint64_t size, HasBuffer root,
            const wire::Digest& root_digest);

  const wire::ArchiveIndex& index() const { return *index_; }

 private:
  std::shared_ptr<const Buffer> buffer_, root_;
  wire::IndexParts parts_;
  std::optional<wire::ArchiveIndex> index_;
};

template <>
inline constexpr auto fields<wire::Member::Module> =
    std::tuple(&wire::Member::Module::position, &wire::Member::Module::size, &wire::Member::Module::digest);
template <>
inline constexpr auto fields<wire::ArchiveWeights::Tensor> =
    std::tuple(&wire::ArchiveWeights::Tensor::digest, &wire::ArchiveWeights::Tensor::position,
               &wire::ArchiveWeights::Tensor::size);

}  // namespace jaxexp::bindings

/// Only on the way to Python: on the way back it would need memory in a function that is `noexcept`.
template <>
struct nanobind::detail::type_caster<jaxexp::wire::Text> {
  NB_TYPE_CASTER(jaxexp::wire::Text, make_caster<std::string>::Name)

  static handle from_cpp(const jaxexp::wire::Text& text, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<std::string>::from_cpp(text.str(), policy, cleanup);
  }
};
