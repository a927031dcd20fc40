// Walks everything that the schema can reach from the root, once, by FlatBuffers' own verifier.
//
// The verifier's generated code visits a table as often as it is referred to, which lets a small file of shared
// tables keep it busy for hours. This walk goes by the schema's type tables instead, visits every table, vector and
// string once, and has two budgets, so that no later pass over the distinct tables can take longer than it should.
#include "verify.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "error.h"
#include "flat_map.h"
#include "limits.h"

namespace jaxexp::wire {
namespace {

using flatbuffers::TypeCode;
using flatbuffers::TypeTable;

std::size_t size_of(const TypeCode& code) {
  switch (code.base_type) {
    case flatbuffers::ET_UTYPE:
    case flatbuffers::ET_BOOL:
    case flatbuffers::ET_CHAR:
    case flatbuffers::ET_UCHAR: return 1;
    case flatbuffers::ET_SHORT:
    case flatbuffers::ET_USHORT: return 2;
    case flatbuffers::ET_LONG:
    case flatbuffers::ET_ULONG:
    case flatbuffers::ET_DOUBLE: return 8;
    default: return 4;
  }
}

/// UTF-8 as Python's strict decoder has it: shortest forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(const std::uint8_t* p, const std::uint8_t* end) {
  while (p < end) {
    std::uint64_t eight;
    if (end - p >= 8 && (std::memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0)) {
      p += 8;
      continue;
    }
    const std::uint8_t lead = *p++;
    if (lead < 0x80) continue;
    const int more = lead >= 0xC2 && lead <= 0xDF   ? 1
                     : (lead & 0xF0) == 0xE0        ? 2
                     : lead >= 0xF0 && lead <= 0xF4 ? 3
                                                    : 0;
    if (more == 0 || end - p < more) return false;
    const std::uint8_t lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const std::uint8_t highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (*p < lowest || *p > highest) return false;
    for (int i = 1; i < more; ++i)
      if ((p[i] & 0xC0) != 0x80) return false;
    p += more;
  }
  return true;
}

class Walk {
 public:
  explicit Walk(std::span<const std::uint8_t> buffer)
      : data_(buffer.data()),
        verifier_(buffer.data(), buffer.size(), options(buffer.size())),
        bytes_left_(buffer.size()),
        elements_left_(max_vector_elements(buffer.size())) {}

  const schema::Exported& root() {
    const Path path;
    const std::size_t position = follow(0, path);
    table(position, schema::ExportedTypeTable(), path);
    return *reinterpret_cast<const schema::Exported*>(data_ + position);
  }

 private:
  static flatbuffers::Verifier::Options options(std::size_t size) {
    flatbuffers::Verifier::Options options;
    options.max_depth = max_table_depth;
    options.max_tables = static_cast<flatbuffers::uoffset_t>(size);
    return options;
  }

  void table(std::size_t position, const TypeTable* type, const Path& path) {
    if (!first_visit(position, reinterpret_cast<std::uintptr_t>(type))) return;
    if (++depth_ > max_table_depth)
      throw Error(path, "at most " + std::to_string(max_table_depth) + " levels of tables", "more");
    const auto* table = reinterpret_cast<const flatbuffers::Table*>(data_ + position);
    if (!table->VerifyTableStart(verifier_)) throw Error(path, "a table inside the buffer", "one that leads out of it");
    for (std::size_t slot = 0; slot < type->num_elems; ++slot) {
      const auto offset =
          table->GetOptionalFieldOffset(flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(slot)));
      if (offset != 0) field(position + offset, type, slot, path);
    }
    verifier_.EndTable();
    --depth_;
  }

  void field(std::size_t position, const TypeTable* type, std::size_t slot, const Path& parent) {
    const TypeCode& code = type->type_codes[slot];
    const Path path{&parent, type->names[slot]};
    const bool is_table = code.base_type == flatbuffers::ET_SEQUENCE;
    const TypeTable* inner = is_table ? type->type_refs[code.sequence_ref]() : nullptr;
    if (code.is_repeating) {
      vector(follow(position, path), code, inner, path);
    } else if (is_table) {
      table(follow(position, path), inner, path);
    } else if (code.base_type == flatbuffers::ET_STRING) {
      string(follow(position, path), path);
    } else if (!verifier_.VerifyAlignment(position, size_of(code)) || !verifier_.Verify(position, size_of(code))) {
      throw Error(path, "a number inside the buffer", "one beyond its end");
    }
  }

  void vector(std::size_t position, const TypeCode& code, const TypeTable* inner, const Path& path) {
    const bool of_strings = code.base_type == flatbuffers::ET_STRING;
    const auto kind = inner ? reinterpret_cast<std::uintptr_t>(inner) | 1 : of_strings ? 1 : 2 + size_of(code);
    if (!verifier_.VerifyVectorOrString(data_ + position, size_of(code)))
      throw Error(path, "a vector inside the buffer", "one that leads out of it");
    const auto length = flatbuffers::ReadScalar<flatbuffers::uoffset_t>(data_ + position);
    const bool of_bytes = !inner && size_of(code) == 1;
    if (!of_bytes) spend(elements_left_, length, path);
    if (!first_visit(position, kind)) return;
    if (of_bytes) spend(bytes_left_, length, path);
    if (!inner && !of_strings) return;
    for (std::size_t i = 0; i < length; ++i) {
      const Path element{path.parent, path.name, static_cast<std::int64_t>(i)};
      const std::size_t target = follow(position + 4 * (1 + i), element);
      inner ? table(target, inner, element) : string(target, element);
    }
  }

  void string(std::size_t position, const Path& path) {
    if (!first_visit(position, 0)) return;
    const auto* text = reinterpret_cast<const flatbuffers::String*>(data_ + position);
    if (!verifier_.VerifyString(text))
      throw Error(path, "a zero-terminated string inside the buffer", "one that leads out of it or has no end");
    spend(bytes_left_, text->size(), path);
    if (!is_utf8(text->Data(), text->Data() + text->size())) throw Error(path, "UTF-8", "bytes that are not");
  }

  std::size_t follow(std::size_t position, const Path& path) {
    const std::size_t offset = verifier_.VerifyOffset(position);
    if (offset == 0) throw Error(path, "an offset to a place inside the buffer", "one that leads out of it");
    return position + offset;
  }

  /// Kinds are small numbers, or addresses of type tables: those differ in their low halves, being in one library.
  bool first_visit(std::size_t position, std::uintptr_t kind) {
    const std::uint64_t key = (std::uint64_t{position} << 32) | static_cast<std::uint32_t>(kind);
    return seen_.insert(key).second;
  }

  static void spend(std::size_t& left, std::size_t size, const Path& path) {
    if (size > left) throw Error(path, "vectors that do not overlap and are not shared over and over", "more of them");
    left -= size;
  }

  const std::uint8_t* data_;
  flatbuffers::Verifier verifier_;
  std::size_t bytes_left_;     // for distinct strings and byte vectors
  std::size_t elements_left_;  // for other vectors, each time that a table refers to one
  std::size_t depth_ = 0;
  struct Nothing {};
  FlatMap<Nothing> seen_;
};

/// What bytes that are no artifact may be instead, by how they begin; empty where that says nothing.
std::string_view other_format(std::string_view bytes) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"PK\3\4"sv, "a zip archive"},
      {"\x1F\x8B"sv, "a gzip file"},
      {"\x28\xB5\x2F\xFD"sv, "a Zstandard file"},
      {"\x93NUMPY"sv, "a NumPy array"},
      {"\x89HDF\r\n"sv, "an HDF5 file"},
      {"ML\xEFR"sv, "an MLIR module, such as the StableHLO inside an artifact"},
      {"\x7F\x45LF"sv, "a program or library"},
      {"\x89PNG"sv, "an image"},
  };
  for (const auto& [start, name] : known)
    if (bytes.starts_with(start)) return name;
  // A pickle names its protocol; an artifact that begins with these two bytes goes on with a zero.
  if (bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 && bytes[2] != 0) return "a pickle";
  const auto is_text = [](unsigned char c) {
    return (c >= ' ' && c <= '~') || (c >= '\t' && c <= '\r') || (c >= 0x80 && c <= 0xF4);  // UTF-8 uses no others
  };
  if (bytes.size() > 2 && std::ranges::all_of(bytes.substr(0, 8), is_text)) return "text";
  return {};
}

[[noreturn]] void refuse_foreign(std::span<const std::uint8_t> buffer, const std::string& detail) {
  const std::string_view other = other_format({reinterpret_cast<const char*>(buffer.data()), buffer.size()});
  throw Error({}, "a serialized Exported",
              other.empty() ? detail : "what looks like " + std::string(other) + " (" + detail + ")");
}

}  // namespace

const schema::Exported& verify(std::span<const std::uint8_t> buffer) {
  // Offsets reach no further, so whatever lies behind (a trailer) is no part of the flat buffer.
  buffer = buffer.first(std::min(buffer.size(), max_buffer_size - 1));
  if (buffer.size() < FLATBUFFERS_MIN_BUFFER_SIZE)
    refuse_foreign(buffer, std::to_string(buffer.size()) + " bytes");
  try {
    return Walk(buffer).root();
  } catch (const Error& error) {
    // What is wrong with the root table has no path; most of what is no artifact fails there.
    if (!error.path.empty()) throw;
    refuse_foreign(buffer, "bytes whose root table is damaged or absent: expected " + error.expected + ", found " +
                               error.found);
  }
}

}  // namespace jaxexp::wire
