// What every reader of MLIR bytecode begins with: the version and the producer of a module, and its sections.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/base/error.h"
#include "wire/bytecode/cursor.h"

namespace jaxexp::wire {

/// Sections by their numbers (https://mlir.llvm.org/docs/BytecodeFormat/).
enum class Section : unsigned {
  strings,
  dialects,
  entries,
  entry_offsets,
  code,
  resources,
  resource_offsets,
  dialect_versions,
  properties,
};
inline constexpr std::size_t section_kinds = 9;

/// From these versions of the format on, ...
namespace since {
inline constexpr std::uint64_t versioned_dialects = 1;  // a dialect may state a version
inline constexpr std::uint64_t isolated_sections = 2;   // regions that use nothing from outside have a section each
inline constexpr std::uint64_t use_lists = 3;           // the order of a value's uses may be stated
inline constexpr std::uint64_t counted_operations = 4;  // the number of operations stands before their names,
inline constexpr std::uint64_t optional_locations = 4;  // and block arguments have a location only where it is known
inline constexpr std::uint64_t native_properties = 5;   // operations have properties, and their names a flag
}  // namespace since
inline constexpr std::uint64_t newest_bytecode = 6;

/// What an operation has, as bits.
namespace parts_of_operation {
inline constexpr unsigned has_attributes = 1, has_results = 2, has_operands = 4, has_successors = 8, has_regions = 16,
                          has_use_lists = 32, has_properties = 64;
}  // namespace parts_of_operation

/// Whether bytes begin as MLIR bytecode does.
bool begins_like_bytecode(std::span<const std::uint8_t> bytes);

/// Keeps views into the module.
class Sections {
 public:
  /// Reads what stands in front of the sections. Throws Error.
  Sections(std::span<const std::uint8_t> module, const Path& where);

  std::uint64_t version() const { return version_; }
  std::string_view producer() const { return producer_; }
  /// How many bytes stand in front of the sections.
  std::size_t head_size() const { return head_size_; }

  /// Finds all sections. Throws Error where one is there twice, or of a kind that this version does not have.
  void find();

  const std::optional<Cursor>& operator[](Section kind) const { return sections_[static_cast<std::size_t>(kind)]; }
  /// The same; throws Error where there is none.
  const Cursor& needed(Section kind) const;

 private:
  Cursor rest_;
  std::uint64_t version_;
  std::string_view producer_;
  std::size_t head_size_;
  std::array<std::optional<Cursor>, section_kinds> sections_;
};

/// Views into the module.
struct Names {
  struct Operation {
    std::uint32_t dialect, name;  // numbers of a dialect and of a string
    bool registered;              // its properties are in the section for that
  };

  /// Throws Error where a table is not there, or damaged, or where a few bytes name more than any module has.
  explicit Names(const Sections& sections);

  std::string_view dialect_of(const Operation& operation) const { return dialects[operation.dialect]; }
  std::string_view name_of(const Operation& operation) const { return strings[operation.name]; }
  /// As in "vhlo.add_v1".
  std::string full_name_of(const Operation& operation) const {
    return std::string(dialect_of(operation)) + '.' + std::string(name_of(operation));
  }

  std::vector<std::string_view> strings, dialects;
  std::vector<Operation> operations;

 private:
  void read_strings(Cursor section);
  void read_dialects(Cursor section, std::uint64_t version);
  std::uint32_t string(const Cursor& at, std::uint64_t index) const {
    return static_cast<std::uint32_t>(at.indexed(index, strings.size(), "strings"));
  }
};

/// The attributes of a module, with the types behind them.
class EntryTable {
 public:
  /// `entries` and `offsets` are the sections of these names; `dialects` has to stay. Throws Error where sizes and
  /// numbers do not fit.
  EntryTable(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects);

  std::size_t size() const { return all_.size(); }
  std::uint64_t attributes() const { return attributes_; }
  Cursor data(std::size_t i) const { return section_.slice(all_[i].begin, all_[i].size); }
  std::string_view dialect(std::size_t i) const { return dialects_[all_[i].dialect]; }
  std::uint32_t dialect_number(std::size_t i) const { return all_[i].dialect; }
  /// Whether an entry is encoded by its dialect, and begins with the number of the kind. Otherwise it is a text.
  bool encoded(std::size_t i) const { return all_[i].encoded; }

 private:
  /// Small, as there may be one for two bytes of the module.
  struct Entry {
    std::uint32_t begin, size, dialect : 31, encoded : 1;
  };

  void add(Cursor& offsets, std::uint64_t count);

  Cursor section_;
  std::span<const std::string_view> dialects_;
  std::uint64_t attributes_;
  std::size_t end_ = 0;  // of the last entry
  std::vector<Entry> all_;
};

/// Entries refer to one another by number, so they form a graph: the attributes, with the types behind them.
class AttributesAndTypes {
 public:
  /// Reads and checks all of them. `entries` and `offsets` are the sections of these names.
  AttributesAndTypes(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects,
                     std::span<const std::string_view> strings);

  std::uint64_t attributes() const { return attributes_; }
  /// The number of a kind of VHLO attribute; 0, which is none, for all others.
  unsigned vhlo_kind(std::uint64_t attribute) const { return nodes_[attribute].kind; }
  /// Whether an array holds nothing but dictionaries.
  bool holds_dictionaries_alone(std::uint64_t attribute) const;
  /// How wide an integer, or an element of a constant, is: 1 for truth values, 0 if it is no integer.
  std::int32_t integer_bits(std::uint64_t attribute) const;
  /// Whether an attribute that is a type is a function's.
  bool is_function_type(std::uint64_t attribute) const {
    return nodes_[references_of(attribute).front()].is == Class::function;
  }
  /// What an array or a dictionary holds: in dictionaries, names and values alternate.
  std::span<const std::uint32_t> elements(std::uint64_t attribute) const { return references_of(attribute); }
  /// The number of the string that a string attribute of the builtin dialect or of VHLO is; `no_string` for all others.
  std::uint32_t string(std::uint64_t attribute) const { return nodes_[attribute].string; }
  static constexpr std::uint32_t no_string = UINT32_MAX;
  /// Of a string, by its number: equal for equal strings, and for no others that anybody can choose; not 0.
  std::uint64_t hash(std::uint32_t string);
  /// How an attribute is encoded.
  Cursor data(std::uint64_t attribute) const { return entries_.data(attribute); }
  /// What converting an attribute takes, in steps of 16 bytes: whoever copies it copies what it shares each time.
  std::uint64_t weight(std::uint64_t attribute) const {
    return nodes_[attribute].expanded +
           static_cast<std::uint64_t>(std::max<std::int64_t>(nodes_[attribute].bytes, 0)) / 16;
  }
  std::uint64_t types() const { return nodes_.size() - attributes_; }
  /// Of a type, with its number behind those of the attributes: whose it is, and whether it is no text; how many bits
  /// an element of a tensor takes, or a number; 0 or less where that is not known.
  std::string_view dialect(std::uint64_t type) const { return entries_.dialect(type); }
  bool encoded(std::uint64_t type) const { return entries_.encoded(type); }
  std::int32_t bits(std::uint64_t type) const { return nodes_[type].bits; }

  /// What converting a value of a type takes, in steps: tuples have parts, which may be shared.
  std::uint64_t weight_of_value(std::uint64_t type) const {
    const Node& node = nodes_[attributes_ + type];
    return node.is == Class::tensor ? 0 : node.expanded;
  }
  /// What values of a type are: tensors (x), tokens (k), tuples (p), futures (f), buffers (m), or `no_value`.
  char value_kind(std::uint64_t type) const;
  static constexpr char no_value = ' ';
  /// Whether a tensor type is that of one truth value.
  bool is_predicate(std::uint64_t type) const;
  /// Whether the elements of a tensor type are integers, truth values included.
  bool holds_integers(std::uint64_t type) const;
  bool holds_truth_values(std::uint64_t type) const;
  /// What the elements of a tensor type are, by VHLO's number, also if they are builtin ones; `complex_numbers` more
  /// for complex ones, and `unknown_element` for all others.
  unsigned element(std::uint64_t type) const;
  static constexpr unsigned complex_numbers = 64, unknown_element = UINT8_MAX;
  /// How many dimensions a tensor type has.
  std::int64_t rank(std::uint64_t type) const { return nodes_[attributes_ + type].rank; }

  /// Their sizes; `dynamic_size` for one that is open.
  std::span<const std::int64_t> sizes(std::uint64_t type) const {
    const Node& node = nodes_[attributes_ + type];
    return std::span(sizes_).subspan(node.first_size, static_cast<std::size_t>(node.rank));
  }
  static constexpr std::int64_t dynamic_size = INT64_MIN;
  static constexpr std::int64_t max_elements = std::int64_t{1} << 46;  // of an array

  /// What a VHLO attribute of an enum says.
  std::uint64_t choice(std::uint64_t attribute) const {
    Cursor data = entries_.data(attribute);
    data.number();  // its kind
    return data.number();
  }
  /// What a VHLO attribute has that is an integer or a constant.
  struct Numbers {
    std::int64_t count;                // of all of them
    std::vector<std::int64_t> listed;  // one for all if they are equal; none if they do not have 64 bits
  };
  Numbers numbers(std::uint64_t attribute) const;

 private:
  enum class Class : std::uint8_t {
    unknown,
    other,
    location,
    dictionary,
    integer,
    floating,
    complex,
    truth,
    function,
    tensor,
    token,
    tuple,
    future,
    buffer,
    bounds,
    mesh
  };
  static constexpr std::int32_t unknown = -1;

  struct Node {
    std::uint32_t first_reference = 0;  // into references_; those of a node end where the next one's begin
    std::uint32_t depth = 0;            // 0 until all that it refers to is known
    Class is = Class::unknown;
    Class needs = Class::unknown;  // of what it refers to first
    std::uint8_t kind = 0;
    std::uint32_t first_size = 0;    // into sizes_, of a tensor type
    std::uint8_t kind_of_parts = 0;  // that all attributes have to which it refers; UINT8_MAX if they differ
    std::uint32_t string = no_string;
    std::int32_t bits = unknown;      // of a number in memory
    std::int32_t rank = unknown;      // of a tensor type
    std::uint32_t expanded = 1;       // how many entries it is when shared ones are counted again
    std::int64_t elements = unknown;  // of a tensor type of constant shape; or devices in a part of a mesh
    std::int64_t bytes = unknown;     // of a constant's data
  };

  void read(Node& node, Cursor& entry, const char* layout);
  void refer(Cursor& entry, bool is_type);
  void follow_references();
  void finish(std::size_t at);
  bool is_dense_array(std::size_t builtin) const;
  void check_mesh(const Node& node, std::span<const std::uint32_t> references) const;
  void check_axes(std::span<const std::uint32_t> axes) const;
  void check_data(const Node& node, const Node& type) const;
  void check_name(std::uint32_t string);
  void check_names(std::span<const std::uint32_t> dictionary);
  std::span<const std::uint32_t> references_of(std::size_t at) const;

  Cursor where_;  // for messages
  std::span<const std::string_view> strings_;
  std::vector<bool> are_names_;        // of the strings, those that were checked
  std::vector<std::uint64_t> hashes_;  // of the strings; 0 until somebody asks
  EntryTable entries_;
  std::uint64_t attributes_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> references_;
  std::vector<std::int64_t> sizes_;
};

}  // namespace jaxexp::wire
