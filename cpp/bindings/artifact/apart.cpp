// Modules apart from their artifact, and digests.
#include "wire/artifact/apart.h"

#include <algorithm>
#include <vector>

#include "bindings/base/buffer.h"
#include "bindings/base/define.h"
#include "bindings/base/objects.h"
#include "wire/base/digest.h"
#include "wire/base/memory.h"

namespace jaxexp::bindings {
namespace {

nb::bytes cut(HasBuffer artifact) {
  const auto buffer = stable(artifact, Buffer::alignment, /*in_parts=*/false, /*is_kept=*/true);
  const auto image = over(buffer->bytes().size(), [&] { return wire::cut(buffer->bytes()); });
  return nb::bytes(image.data(), image.size());
}

/// The bytearray is allocated once.
nb::bytearray join(HasBuffer image, const nb::typed<nb::sequence, HasBuffer>& modules) {
  std::vector<std::shared_ptr<const Buffer>> buffers{stable(image)};
  std::vector<wire::Opened::Bytes> spans;
  for (nb::handle module : modules) {
    buffers.push_back(stable(module));
    spans.push_back(buffers.back()->bytes());
  }
  const auto joined =
      over(buffers.front()->bytes().size(), [&] { return wire::Joined(buffers.front()->bytes(), spans); });
  auto result = owned<nb::bytearray>(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(joined.size())));
  auto* const target = reinterpret_cast<std::uint8_t*>(PyByteArray_AS_STRING(result.ptr()));
  over(joined.size(), [&] {
    wire::in_large_pages({target, joined.size()});
    joined.write(target);
  });
  return result;
}

bool equal_bytes(HasBuffer one, HasBuffer other) {
  const Buffer first(one), second(other);
  if (first.bytes().size() != second.bytes().size()) return false;
  return over(first.bytes().size(), [&] { return std::ranges::equal(first.bytes(), second.bytes()); });
}

}  // namespace

void define_apart(nb::module_& m) {
  m.def("cut", &cut, "artifact"_a,
        "An artifact without its modules' bytes, for who keeps those elsewhere; it has to have a trailer.");
  m.def("join", &join, "image"_a, "modules"_a,
        "The artifact that `cut` made the image from, byte for byte; its modules are compared with their digests.");
  m.def(
      "digest",
      [](HasBuffer buffer) {
        const Buffer held(buffer);
        return over(held.bytes().size(), [&] { return wire::digest(held.bytes()); });
      },
      "buffer"_a, "XXH3 of 128 bits, in its canonical byte order, as trailers have it.");
  m.def(
      "artifact_digest",
      [](HasBuffer artifact) {
        const Buffer held(artifact);
        const auto trailer = wire::Trailer::read(held.bytes());
        if (!trailer) throw wire::Error({}, "an artifact with a trailer", "one without");
        return trailer->artifact_digest();
      },
      "artifact"_a, "The digest at the end of an artifact with a trailer, which covers all that the artifact is.");
  m.def("equal_bytes", &equal_bytes, "one"_a, "other"_a,
        "Whether two buffers have the same bytes. Python's memoryviews compare one byte after the other.");
  nb::class_<wire::Digester>(m, "Digester", "The same digest, of bytes that come in parts, from one thread.")
      .def(nb::init<>())
      .def(
          "update",
          [](wire::Digester& digester, HasBuffer part) {
            const Buffer held(part);
            over(held.bytes().size(), [&] { digester.update(held.bytes()); });
          },
          "part"_a)
      .def("digest", &wire::Digester::digest, "Of all parts so far.");
}

}  // namespace jaxexp::bindings
