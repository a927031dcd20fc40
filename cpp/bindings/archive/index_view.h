// An archive's index as Python sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "bindings/base/buffer.h"
#include "wire/archive/index.h"
#include "wire/archive/member.h"

namespace jaxexp::bindings {

/// The index of an archive in a caller's buffer.
class IndexView {
 public:
  IndexView(nb::handle index, nb::handle root, nb::bytes root_digest, std::uint64_t end);
  /// Of an index in a file, which `owner` is.
  IndexView(const wire::FileBytes& file, nb::handle owner, std::uint64_t position, std::uint64_t size, nb::handle root,
            nb::bytes root_digest);

  const wire::ArchiveIndex& index() const { return index_; }
  nb::object find(std::string_view name) const;
  nb::list names() const;
  nb::str name(std::uint32_t number) const;
  wire::Member member(std::uint32_t number) const;
  nb::tuple extent(std::uint32_t number) const;
  nb::list find_all(const nb::list& names) const;
  nb::list extents(const nb::list& numbers) const;
  nb::list zip_extents(const nb::list& numbers) const;
  nb::list owners(const nb::list& numbers) const;
  nb::list own_metadata(const nb::list& numbers) const;
  nb::list weights_files() const;
  nb::list tensors() const;
  nb::object tensor(const nb::bytes& digest) const;
  void check() const;

 private:
  std::shared_ptr<const Buffer> buffer_, root_;
  wire::ArchiveIndex index_;
};

void define_index(nb::module_& m);

}  // namespace jaxexp::bindings
