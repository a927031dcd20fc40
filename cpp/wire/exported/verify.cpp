// Walks everything that the schema can reach from the root, once, and checks what FlatBuffers' verifier checks: that
// tables, fields, vectors and strings lie inside the buffer, at multiples of their size.
//
// The code that flatc generates visits a table as often as it is referred to, so a small file of shared tables keeps it
// busy for hours. This walk follows the schema's type tables instead and visits every table, vector and string once.
// Two budgets keep every later pass over the distinct tables short.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/base/other_format.h"
#include "wire/base/text.h"
#include "wire/base/unaligned.h"
#include "wire/exported/check.h"
#include "wire/exported/limits.h"

namespace jaxexp::wire {
namespace {

/// Places and as what they were visited. Everything that is visited is aligned to four bytes, so there is a mark for
/// each of these words.
class Visits {
 public:
  explicit Visits(std::size_t buffer_size) : chunks_(buffer_size / word / chunk_size + 1) {}

  /// Whether it is the first visit to this place as something of this kind (not zero).
  bool first(std::size_t position, std::uint8_t kind) {
    auto& chunk = chunks_[position / word / chunk_size];
    if (!chunk) chunk = std::make_unique<std::uint8_t[]>(chunk_size);
    std::uint8_t& visited_as = chunk[position / word % chunk_size];
    if (visited_as == kind) return false;
    if (visited_as == 0) return visited_as = kind, true;
    // Two kinds in one place: at best by chance (an empty vector may serve as any other).
    return others_.insert((std::uint64_t{position} << 8) | kind).second;
  }

 private:
  static constexpr std::size_t word = 4, chunk_size = std::size_t{1} << 12;
  std::vector<std::unique_ptr<std::uint8_t[]>> chunks_;  // absent where nothing was visited, as in a large module
  FlatMap<Nothing> others_;
};

/// What the schema says of a type of table, as the walk needs it.
struct Type {
  enum class Kind : std::uint8_t { number, string, table, numbers, strings, tables };  // the last three are vectors
  struct Field {
    std::string_view name;
    Kind kind;
    std::uint8_t size;  // of a number, or of a vector's elements
    const Type* inner;  // of a table, or of a vector's tables
  };

  std::uint8_t number = 0;    // from 1; distinguishes the schema's types
  std::vector<Field> fields;  // by slot
};

static_assert(schema::Exported::VT_JAX_VERSION < 4 + 2 * 32, "Layout has a bit for each slot of the largest table");

/// What a vtable says of all tables of one type that use it: tables are many, vtables are few.
struct Layout {
  std::uint32_t vtable = 0;      // its position
  std::uint8_t type = 0;         // the number of the tables' type; 0 where this is none
  std::uint32_t end = 0;         // behind the last byte of the fields, from the start of the table
  std::uint32_t references = 0;  // a bit for each slot that holds an offset
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

/// The types of the schema, from the tables that flatc generates.
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

// What a place is visited as: a table's kind is the number of its type.
constexpr std::uint8_t string_visit = 64, number_vector_visit = 65, string_vector_visit = 66, table_vector_visit = 128;

std::uint8_t vector_of(const Type::Field& field) {
  switch (field.kind) {
    case Type::Kind::tables: return static_cast<std::uint8_t>(table_vector_visit + field.inner->number);
    case Type::Kind::strings: return string_vector_visit;
    default: return number_vector_visit;
  }
}

/// Outside of the walk, whose functions stay small without the texts of errors.
[[noreturn]] void refuse(const Path& path, const char* expected, const char* found) {
  throw Error(path, expected, found);
}

[[noreturn]] void refuse_levels(const Path& path) {
  throw Error(path, "at most " + std::to_string(max_table_depth) + " levels of tables", "more");
}

class Walk {
 public:
  explicit Walk(std::span<const std::uint8_t> buffer)
      : data_(buffer.data()),
        size_(buffer.size()),
        bytes_left_(buffer.size()),
        elements_left_(max_vector_elements(buffer.size())),
        visits_(buffer.size()) {}

  const schema::Exported& root() {
    const Path path;
    const std::size_t position = follow(0, path);
    table(position, Types::exported(), path);
    return *reinterpret_cast<const schema::Exported*>(data_ + position);
  }

  const Extent& tables() const { return tables_; }

 private:
  static constexpr std::size_t offset_size = sizeof(flatbuffers::uoffset_t),
                               entry_size = sizeof(flatbuffers::voffset_t);
  static constexpr std::string_view module_field = "mlir_module_serialized";

  /// Whether `size` bytes from a position on are in the buffer. Both come from 32-bit numbers, so their sum does not
  /// overflow.
  bool holds(std::size_t position, std::size_t size) {
    tables_.begin = std::min(tables_.begin, position);
    tables_.end = std::max(tables_.end, position + size);
    return position + size <= size_;
  }

  void table(std::size_t position, const Type& type, const Path& path) {
    if (!visits_.first(position, type.number)) return;
    if (++depth_ > max_table_depth) refuse_levels(path);
    const Layout layout = this->layout(position, type, path);
    if (!holds(position, layout.end)) refuse_fields(position, layout, type, path);
    for (std::uint32_t left = layout.references; left != 0; left &= left - 1) {
      const auto slot = static_cast<std::size_t>(std::countr_zero(left));
      reference(position + offset_in_table(layout, slot), type.fields[slot], path);
    }
    --depth_;
  }

  Layout layout(std::size_t position, const Type& type, const Path& path) {
    if (!holds(position, offset_size)) refuse_table(path);
    // The offset may have either sign; its target has to lie in the buffer.
    const auto vtable =
        position - static_cast<std::size_t>(flatbuffers::ReadScalar<flatbuffers::soffset_t>(data_ + position));
    Layout& known = layouts_[(vtable / 2 + type.number) % layouts_.size()];
    if (known.type != type.number || known.vtable != vtable) known = read_layout(vtable, type, path);
    return known;
  }

  Layout read_layout(std::size_t vtable, const Type& type, const Path& path) {
    if (vtable % entry_size != 0 || vtable >= size_ || !holds(vtable, entry_size)) refuse_table(path);
    const std::size_t size = flatbuffers::ReadScalar<flatbuffers::voffset_t>(data_ + vtable);
    // Its own size and that of the table come first.
    constexpr std::size_t header = 2 * entry_size;
    if (size % entry_size != 0 || size < header || !holds(vtable, size)) refuse_table(path);
    Layout layout{static_cast<std::uint32_t>(vtable), type.number, 0, 0};
    const std::size_t slots = std::min((size - header) / entry_size, type.fields.size());
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const std::size_t offset = offset_in_table(layout, slot);
      if (offset == 0) continue;
      const Type::Field& field = type.fields[slot];
      const bool is_number = field.kind == Type::Kind::number;
      // Tables begin at multiples of four, and no number of the schema is wider than that.
      const std::size_t width = is_number ? field.size : offset_size;
      if (offset % width != 0) throw Error({&path, field.name}, "a value at a multiple of its size", "another place");
      layout.end = std::max(layout.end, static_cast<std::uint32_t>(offset + width));
      if (!is_number) layout.references |= std::uint32_t{1} << slot;
    }
    return layout;
  }

  std::size_t offset_in_table(const Layout& layout, std::size_t slot) const {
    const auto entry = flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(slot));
    return flatbuffers::ReadScalar<flatbuffers::voffset_t>(data_ + layout.vtable + entry);
  }

  [[noreturn]] static void refuse_table(const Path& path) {
    refuse(path, "a table inside the buffer", "one that leads out of it");
  }

  /// Names the first field of a table that does not lie inside the buffer.
  [[noreturn]] void refuse_fields(std::size_t position, const Layout& layout, const Type& type, const Path& path) {
    const auto vtable_size = flatbuffers::ReadScalar<flatbuffers::voffset_t>(data_ + layout.vtable);
    for (std::size_t slot = 0; slot < type.fields.size(); ++slot) {
      if (flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(slot)) >= vtable_size) break;
      const Type::Field& field = type.fields[slot];
      const std::size_t offset = offset_in_table(layout, slot);
      const bool is_number = field.kind == Type::Kind::number;
      if (offset == 0 || holds(position + offset, is_number ? field.size : offset_size)) continue;
      throw Error({&path, field.name}, is_number ? "a number inside the buffer" : "an offset inside the buffer",
                  "one beyond its end");
    }
    refuse_table(path);
  }

  void reference(std::size_t position, const Type::Field& field, const Path& parent) {
    const Path path{&parent, field.name};
    const std::size_t target = follow(position, path);
    switch (field.kind) {
      case Type::Kind::string: string(target, path); break;
      case Type::Kind::table: table(target, *field.inner, path); break;
      default: vector(target, field, path);
    }
  }

  void vector(std::size_t position, const Type::Field& field, const Path& path) {
    const Extent before = tables_;
    const std::size_t length = this->length(position);
    if (!holds(position + offset_size, length * field.size))
      refuse(path, "a vector inside the buffer", "one that leads out of it");
    const bool of_bytes = field.kind == Type::Kind::numbers && field.size == 1;
    if (!of_bytes) spend(elements_left_, length, path);
    if (!visits_.first(position, vector_of(field))) return;
    if (of_bytes) spend(bytes_left_, length, path);
    if (of_bytes && field.name == module_field) tables_ = before;
    if (field.kind == Type::Kind::numbers) return;
    for (std::size_t i = 0; i < length; ++i) {
      const Path element{path.parent, path.name, static_cast<std::int64_t>(i)};
      const std::size_t target = follow(position + offset_size * (1 + i), element);
      field.inner ? table(target, *field.inner, element) : string(target, element);
    }
  }

  void string(std::size_t position, const Path& path) {
    if (!visits_.first(position, string_visit)) return;
    const std::size_t length = this->length(position);
    const std::uint8_t* const text = data_ + position + offset_size;
    if (!holds(position + offset_size, length + 1) || text[length] != 0)
      refuse(path, "a zero-terminated string inside the buffer", "one that leads out of it or has no end");
    spend(bytes_left_, length, path);
    if (!is_utf8({text, length})) refuse(path, "UTF-8", "bytes that are not");
  }

  /// The length of the vector or string at a position; a number larger than any buffer where the length itself is not
  /// in the buffer.
  std::size_t length(std::size_t position) {
    if (!holds(position, offset_size)) return max_buffer_size;
    return flatbuffers::ReadScalar<flatbuffers::uoffset_t>(data_ + position);
  }

  /// Where an offset leads that lies at a place inside the buffer.
  std::size_t follow(std::size_t position, const Path& path) const {
    const auto offset = flatbuffers::ReadScalar<flatbuffers::uoffset_t>(data_ + position);
    const std::size_t target = position + offset;
    if (offset == 0 || target >= size_)
      refuse(path, "an offset to a place inside the buffer", "one that leads out of it");
    if (target % 4 != 0) refuse(path, "an offset to a multiple of four bytes", "another one");
    return target;
  }

  static void spend(std::size_t& left, std::size_t size, const Path& path) {
    if (size > left) refuse(path, "vectors that do not overlap and are not shared over and over", "more of them");
    left -= size;
  }

  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t bytes_left_;     // for distinct strings and byte vectors
  std::size_t elements_left_;  // for other vectors, each time that a table refers to one
  std::size_t depth_ = 0;
  Extent tables_{max_buffer_size, 0};
  Visits visits_;
  std::array<Layout, 64> layouts_;  // one for each remainder; a newer one takes the place of an older
};

[[noreturn]] void refuse_foreign(std::span<const std::uint8_t> buffer, const std::string& detail) {
  const std::string_view other = other_format(buffer);
  throw Error({}, "a serialized Exported", other.empty() ? detail : "what looks like " + std::string(other));
}

}  // namespace

const schema::Exported& verify(std::span<const std::uint8_t> buffer) {
  Extent tables;
  return verify(buffer, tables);
}

const schema::Exported& verify(std::span<const std::uint8_t> buffer, Extent& tables) {
  // Offsets reach no further, so what lies behind (such as a trailer) is not part of the flat buffer.
  buffer = buffer.first(std::min(buffer.size(), max_buffer_size - 1));
  if (buffer.size() < FLATBUFFERS_MIN_BUFFER_SIZE) refuse_foreign(buffer, std::to_string(buffer.size()) + " bytes");
  try {
    Walk walk(buffer);
    const schema::Exported& root = walk.root();
    tables = walk.tables();
    return root;
  } catch (const Error& error) {
    // What is wrong with the root table has no path; most of what is no artifact fails there.
    if (!error.path.empty()) throw;
    refuse_foreign(
        buffer, "bytes whose root table is damaged or absent: expected " + error.expected + ", found " + error.found);
  }
}

}  // namespace jaxexp::wire
