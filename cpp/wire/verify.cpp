// Walks everything that the schema can reach from the root, once, by FlatBuffers' own verifier.
//
// The verifier's generated code visits a table as often as it is referred to, which lets a small file of shared
// tables keep it busy for hours. This walk goes by the schema's type tables instead, visits every table, vector and
// string once, and has two budgets, so that no later pass over the distinct tables can take longer than it should.
#include "verify.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "error.h"
#include "flat_map.h"
#include "limits.h"

namespace jaxexp::wire {
namespace {

/// What the schema says of a type of table, in the form that the walk goes by.
struct Type {
  enum class Kind : std::uint8_t { number, string, table, numbers, strings, tables };  // the last three are vectors
  struct Field {
    std::string_view name;
    Kind kind;
    std::uint8_t size;   // of a number, or of a vector's elements
    const Type* inner;  // of a table, or of a vector's tables
  };

  std::uint8_t number = 0;  // from 1; distinguishes the schema's types
  std::vector<Field> fields;  // by slot
};

std::uint8_t size_of(const flatbuffers::TypeCode& code) {
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

/// The types of the schema, read off the tables that flatc generates.
class Types {
 public:
  static const Type& exported() {
    static const Types types;
    return *types.exported_;
  }

 private:
  Types() : exported_(&add(schema::ExportedTypeTable())) {}

  const Type& add(const flatbuffers::TypeTable* table) {
    const auto [known, is_new] = types_.try_emplace(table);
    Type& type = known->second;
    if (!is_new) return type;
    type.number = static_cast<std::uint8_t>(types_.size());
    for (std::size_t slot = 0; slot < table->num_elems; ++slot) {
      const flatbuffers::TypeCode& code = table->type_codes[slot];
      const bool of_tables = code.base_type == flatbuffers::ET_SEQUENCE;
      const bool of_strings = code.base_type == flatbuffers::ET_STRING;
      const Type::Kind one = of_tables ? Type::Kind::table : of_strings ? Type::Kind::string : Type::Kind::number;
      const Type::Kind many = of_tables ? Type::Kind::tables : of_strings ? Type::Kind::strings : Type::Kind::numbers;
      const Type* inner = of_tables ? &add(table->type_refs[code.sequence_ref]()) : nullptr;
      type.fields.push_back({table->names[slot], code.is_repeating ? many : one, size_of(code), inner});
    }
    return type;
  }

  std::map<const flatbuffers::TypeTable*, Type> types_;  // whose elements stay where they are
  const Type* exported_;
};

/// Which places of a buffer have been visited, and as what. Everything that is visited is aligned to four bytes.
class Visits {
 public:
  explicit Visits(std::size_t buffer_size) : chunks_(buffer_size / 4 / chunk_size + 1) {}

  /// Whether it is the first visit to this place as something of this kind (not zero).
  bool first(std::size_t position, std::uint8_t kind) {
    auto& chunk = chunks_[position / 4 / chunk_size];
    if (!chunk) chunk = std::make_unique<std::uint8_t[]>(chunk_size);
    std::uint8_t& visited_as = chunk[position / 4 % chunk_size];
    if (visited_as == kind) return false;
    if (visited_as == 0) return visited_as = kind, true;
    // Two kinds in one place: a coincidence at best (an empty vector is as good as any other).
    return others_.insert((std::uint64_t{position} << 8) | kind).second;
  }

 private:
  static constexpr std::size_t chunk_size = std::size_t{1} << 12;
  struct Nothing {};
  std::vector<std::unique_ptr<std::uint8_t[]>> chunks_;  // absent where nothing was visited, as in a large module
  FlatMap<Nothing> others_;
};

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
        elements_left_(max_vector_elements(buffer.size())),
        visits_(buffer.size()) {}

  const schema::Exported& root() {
    const Path path;
    const std::size_t position = follow(0, path);
    table(position, Types::exported(), path);
    return *reinterpret_cast<const schema::Exported*>(data_ + position);
  }

 private:
  static flatbuffers::Verifier::Options options(std::size_t size) {
    flatbuffers::Verifier::Options options;
    options.max_depth = max_table_depth;
    options.max_tables = static_cast<flatbuffers::uoffset_t>(size);
    return options;
  }

  void table(std::size_t position, const Type& type, const Path& path) {
    if (!visits_.first(position, type.number)) return;
    if (++depth_ > max_table_depth)
      throw Error(path, "at most " + std::to_string(max_table_depth) + " levels of tables", "more");
    const auto* table = reinterpret_cast<const flatbuffers::Table*>(data_ + position);
    if (!table->VerifyTableStart(verifier_)) throw Error(path, "a table inside the buffer", "one that leads out of it");
    const std::uint8_t* entries = table->GetVTable() + flatbuffers::FieldIndexToOffset(0);
    const std::size_t slots = (flatbuffers::ReadScalar<flatbuffers::voffset_t>(table->GetVTable()) -
                               flatbuffers::FieldIndexToOffset(0)) / sizeof(flatbuffers::voffset_t);
    for (std::size_t slot = 0; slot < std::min(slots, type.fields.size()); ++slot) {
      const auto offset = flatbuffers::ReadScalar<flatbuffers::voffset_t>(entries + slot * sizeof(flatbuffers::voffset_t));
      if (offset != 0) field(position + offset, type.fields[slot], path);
    }
    verifier_.EndTable();
    --depth_;
  }

  void field(std::size_t position, const Type::Field& field, const Path& parent) {
    const Path path{&parent, field.name};
    switch (field.kind) {
      case Type::Kind::number:
        if (!verifier_.VerifyAlignment(position, field.size) || !verifier_.Verify(position, field.size))
          throw Error(path, "a number inside the buffer", "one beyond its end");
        break;
      case Type::Kind::string: string(follow(position, path), path); break;
      case Type::Kind::table: table(follow(position, path), *field.inner, path); break;
      default: vector(follow(position, path), field, path);
    }
  }

  void vector(std::size_t position, const Type::Field& field, const Path& path) {
    if (!verifier_.VerifyVectorOrString(data_ + position, field.size))
      throw Error(path, "a vector inside the buffer", "one that leads out of it");
    const auto length = flatbuffers::ReadScalar<flatbuffers::uoffset_t>(data_ + position);
    const bool of_bytes = field.kind == Type::Kind::numbers && field.size == 1;
    if (!of_bytes) spend(elements_left_, length, path);
    if (!visits_.first(position, vector_of(field))) return;
    if (of_bytes) spend(bytes_left_, length, path);
    if (field.kind == Type::Kind::numbers) return;
    for (std::size_t i = 0; i < length; ++i) {
      const Path element{path.parent, path.name, static_cast<std::int64_t>(i)};
      const std::size_t target = follow(position + 4 * (1 + i), element);
      field.inner ? table(target, *field.inner, element) : string(target, element);
    }
  }

  void string(std::size_t position, const Path& path) {
    if (!visits_.first(position, string_visit)) return;
    const auto* text = reinterpret_cast<const flatbuffers::String*>(data_ + position);
    if (!verifier_.VerifyString(text))
      throw Error(path, "a zero-terminated string inside the buffer", "one that leads out of it or has no end");
    spend(bytes_left_, text->size(), path);
    if (!is_utf8(text->Data(), text->Data() + text->size())) throw Error(path, "UTF-8", "bytes that are not");
  }

  std::size_t follow(std::size_t position, const Path& path) {
    const std::size_t offset = verifier_.VerifyOffset(position);
    if (offset == 0) throw Error(path, "an offset to a place inside the buffer", "one that leads out of it");
    if ((position + offset) % 4 != 0) throw Error(path, "an offset to a multiple of four bytes", "another one");
    return position + offset;
  }

  // What a place is visited as: a table's kind is the number of its type.
  static constexpr std::uint8_t string_visit = 64, number_vector_visit = 65, string_vector_visit = 66,
                                table_vector_visit = 128;

  static std::uint8_t vector_of(const Type::Field& field) {
    switch (field.kind) {
      case Type::Kind::tables: return static_cast<std::uint8_t>(table_vector_visit + field.inner->number);
      case Type::Kind::strings: return string_vector_visit;
      default: return number_vector_visit;
    }
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
  Visits visits_;
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
