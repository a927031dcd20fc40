// From buffers of Python to cpp/wire/apart and back.
#include "bindings/artifact/apart.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/base/buffer.h"
#include "bindings/base/digest.h"
#include "bindings/base/owned.h"
#include "wire/artifact/apart.h"
#include "wire/base/digest.h"

namespace jaxexp::bindings {

nb::object cut(nb::handle artifact) {
  const auto buffer = stable(artifact, Buffer::alignment, /*in_parts=*/false, /*is_kept=*/true);
  const auto image = over(buffer->bytes().size(), [&] { return wire::cut(buffer->bytes()); });
  return nb::bytes(image.data(), image.size());
}

nb::object join(nb::handle image, nb::handle modules) {
  std::vector<std::shared_ptr<const Buffer>> buffers{stable(image)};
  std::vector<wire::Opened::Bytes> spans;
  for (nb::handle module : modules) {
    buffers.push_back(stable(module));
    spans.push_back(buffers.back()->bytes());
  }
  const wire::Joined joined(buffers.front()->bytes(), spans);
  const nb::object result = owned(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(joined.size())));
  auto* const target = reinterpret_cast<std::uint8_t*>(PyByteArray_AS_STRING(result.ptr()));
  over(joined.size(), [&] { joined.write(target); });
  return result;
}

nb::object digest(nb::handle buffer) {
  const Buffer held(buffer);
  return to_bytes(over(held.bytes().size(), [&] { return wire::digest(held.bytes()); }));
}

bool equal_bytes(nb::handle one, nb::handle other) {
  const Buffer first(one), second(other);
  if (first.bytes().size() != second.bytes().size()) return false;
  return over(first.bytes().size(), [&] { return std::ranges::equal(first.bytes(), second.bytes()); });
}

void update(wire::Digester& digester, nb::handle part) {
  const Buffer held(part);
  over(held.bytes().size(), [&] { digester.update(held.bytes()); });
}

nb::object digest_of_parts(const wire::Digester& digester) { return to_bytes(digester.digest()); }

}  // namespace jaxexp::bindings
