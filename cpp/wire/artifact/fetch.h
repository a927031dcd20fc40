// Artifacts in files that are read in parts.
#pragma once

#include <cstddef>
#include <optional>

#include "wire/artifact/known.h"
#include "wire/artifact/opened.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::wire {

/// Fetching a smaller artifact as a whole takes no longer than finding out what could be left out.
inline constexpr std::size_t worth_parts = std::size_t{1} << 16;

/// Fetches what opening an artifact or an image looks at, which is all but the modules, where a trailer says what that
/// is; else all of it. Returns whether it was a part only.
bool fetch_all_but_modules(const FileBytes& file, Opened::Bytes buffer, bool image);

/// Whether nothing that was looked at may have been left out.
bool is_in_front_of_modules(const Opened& opened);

/// Calls `open`, which fills `opened` from a buffer, when the buffer has what it looks at. `file` may be null, or
/// another file than the buffer's.
template <class Open>
void open_in(const FileBytes* file, Opened::Bytes buffer, bool image, std::optional<Opened>& opened, const Open& open) {
  if (!file || !file->is_in_parts() || !file->has(buffer)) return open();
  if (fetch_all_but_modules(*file, buffer, image)) {
    try {
      open();
      if (is_in_front_of_modules(*opened)) return;
    } catch (const Error&) {
      // Zeros in the place of modules may be what is wrong: what the error really is, all of the bytes tell.
    }
    opened.reset();
    file->fetch(buffer);
  }
  open();
}

}  // namespace jaxexp::wire
