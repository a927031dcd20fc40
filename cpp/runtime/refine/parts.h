// A module taken apart, and put together again with other code.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/refine/numbers.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/bytecode/cursor.h"
#include "wire/bytecode/operations.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::runtime::refine {

/// The number of a kind of operation, an attribute, a type, or a value.
using Id = std::uint32_t;

struct Block;

/// Has one block, or none.
using Region = std::vector<Block>;

struct Operation {
  Id kind = 0, location = 0;
  std::optional<Id> dictionary;  // an attribute
  std::optional<Id> properties;  // a number in the section for that; of kinds that are not registered, an attribute
  std::vector<Id> results;       // types
  Id first_result = 0;           // the value; the other results follow
  std::vector<Id> operands;      // values
  std::vector<Region> regions;
  bool is_isolated = false;   // its regions use nothing from outside
  bool is_removable = false;  // it does nothing but compute its results
  bool is_used = false;
};

struct Block {
  struct Argument {
    Id type;
    std::optional<Id> location;
  };

  std::vector<Argument> arguments;
  Id first_argument = 0;  // the value
  std::vector<Operation> operations;
};

/// What a module has at its top, and how many values all of it has.
struct Code {
  Block top;
  Id values = 0;
};

/// Reads the section of a module that was checked (wire/bytecode/bytecode.h). Throws RunError for code that jumps
/// between blocks.
Code read_code(wire::Cursor section, std::uint64_t version);

/// The same without the code of functions, as far as it has sections of its own: since version 2 of bytecode. Takes
/// time in proportion to the number of functions then. Their values have no numbers.
Block read_heads(wire::Cursor section, std::uint64_t version);

/// What `read_code` reads. Values are numbered anew, so each has to be used where it is known.
std::string written(const Block& top, std::uint64_t version);

/// The numbers of VHLO's attributes, types and enums that are read or written here; their source is in StableHLO.
namespace vhlo {
namespace attribute {
enum : std::uint64_t { array = 1, boolean = 2, direction = 3, comparison = 4, api_version = 5, integer = 9 };
enum : std::uint64_t { string = 14, tensor = 15, type = 17, sub_axis = 21, axis = 22, groups_of_axes = 23 };
}  // namespace attribute
namespace type {
enum : std::uint64_t {
  boolean = 0,
  complex = 1,
  function = 8,
  si32 = 13,
  si64 = 14,
  tensor = 20,
  encoded = 21,
  token = 22,
  tuple = 23
};
}
enum Comparison : std::uint64_t { no_comparison, floats, total_order, signed_integers, unsigned_integers };
}  // namespace vhlo

struct Type {
  bool is_tensor = false;   // one that says no more than its shape and elements
  bool is_dynamic = false;  // it has a size that is not known, or something in it has
  Id element = 0;           // a type
  Shape shape;
};

/// A mesh by its name, and axes of it, the first one being the slowest; of some, a part.
struct MeshAxes {
  struct Axis {
    std::string_view name;
    std::optional<std::pair<std::int64_t, std::int64_t>> part;  // how many parts are before it, and its size
  };

  std::string_view mesh;
  std::vector<Axis> axes;
};

/// Names of attributes, and which attributes.
using Named = std::vector<std::pair<std::string_view, Id>>;

class Tables {
 public:
  struct Kind {
    std::string_view dialect, name, base;  // of "vhlo.add_v1", the base is "add"
    bool is_vhlo, registered;
    const wire::KnownOperation* attributes;

    std::optional<std::size_t> place_of(std::string_view attribute) const {
      return attributes ? attributes->place_of(attribute) : std::nullopt;
    }
    std::string full_name() const { return std::string(dialect) + '.' + std::string(name); }
  };

  /// The sections have been found, and the module was checked (wire/bytecode/bytecode.h).
  explicit Tables(const wire::Sections& sections);
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  std::uint64_t version() const { return sections_.version(); }
  const Kind& kind(Id kind) const { return kinds_[kind]; }
  Id vhlo_kind(std::string_view name);

  /// Whether some tensor of the module has a size that is not known.
  bool has_dynamic_types();
  const Type& type(Id type);
  Element element(Id type) const;
  /// As JAX names it; empty where it is not known.
  std::string_view dtype(Id type) const;
  Id tensor_type(Id element, const Shape& shape);
  Id function_type(std::span<const Id> inputs, std::span<const Id> results);
  Id scalar_element(std::uint64_t kind);  // the type of numbers that VHLO has under this number
  bool is_token(Id type) const;

  /// An attribute of an operation; nothing where it has none of this name.
  std::optional<Id> attribute(const Operation& operation, std::string_view name) const;
  /// The same as `attribute`. Throws RunError where it is not there.
  Id needed(const Operation& operation, std::string_view name) const;

  /// Where something is in its source, as in "'jit(f)/add' (f.py:3)"; empty where the module does not say.
  std::string place_of(Id location) const;
  /// The name that others refer to an operation by; of other dialects' operations, the text among their properties.
  std::optional<std::string_view> symbol(const Operation& operation) const;

  // What an attribute says. These throw RunError where it is of another kind.
  std::string_view text(Id attribute) const;
  std::int64_t integer(Id attribute) const;
  bool boolean(Id attribute) const;
  std::uint64_t number(Id attribute) const;  // of an enum
  std::vector<Id> array(Id attribute) const;
  /// A tensor of a few integers; nothing for all others.
  std::optional<Integers> integers(Id attribute);
  Integers needed_integers(const Operation& operation, std::string_view name);
  /// A function's type: those of its arguments and of its results.
  std::pair<std::vector<Id>, std::vector<Id>> function(Id attribute) const;
  /// What a dictionary has under a name.
  std::optional<Id> in_dictionary(Id dictionary, std::string_view name) const;
  /// Groups of devices that are said by axes of a mesh; nothing where they are said in another way.
  std::optional<MeshAxes> mesh_axes(Id attribute) const;

  Id string_attribute(std::string_view text);
  Id array_attribute(std::span<const Id> elements);
  Id type_attribute(Id type);
  Id integer_attribute(std::int64_t value);  // of 64 bits
  Id enum_attribute(std::uint64_t kind, std::uint64_t value);
  /// A tensor type, and its elements; one for each, or one for all of them.
  Id tensor_attribute(Id type, std::span<const std::int64_t> values);
  /// A tensor of integers of 64 bits, as attributes of operations have them.
  Id sizes_attribute(std::span<const std::int64_t> values, const Shape& shape);
  Id sizes_attribute(std::span<const std::int64_t> values);
  Id boolean_attribute(bool value);

  /// Gives an operation, which has its kind, these attributes and no others.
  void set_attributes(Operation& operation, Named attributes);
  /// Takes an attribute away that belongs to no property, where there is one of this name.
  void remove_attribute(Operation& operation, std::string_view name);
  /// Gives an operation another value of an attribute that it has.
  void replace_attribute(Operation& operation, std::string_view name, Id value);

  // The sections of the tables.
  std::string written_dialects() const;
  std::pair<std::string, std::string> written_entries() const;  // and their offsets
  std::string written_strings() const;
  std::string written_properties() const;

 private:
  struct Added {
    std::uint32_t dialect;
    std::string bytes;
  };

  /// An attribute or a type: what it is, and a place behind that.
  struct Encoded {
    bool is_vhlo, is_builtin;
    std::uint64_t kind;
    wire::Cursor at;
  };

  Encoded encoded(const Added& added) const;
  Encoded encoded(std::size_t entry) const;
  Encoded attribute_at(Id attribute) const;
  Encoded type_at(Id type) const;
  wire::Cursor data(Id attribute, std::uint64_t kind, const char* what) const;
  std::vector<std::pair<Id, Id>> pairs(Id dictionary) const;
  bool is_name(Id attribute, std::string_view name) const;
  bool is_text(Id attribute) const;
  std::vector<Id> properties(const Operation& operation) const;
  Type decoded(Id type);
  Id add_attribute(std::uint32_t dialect, std::string bytes);
  Id add_type(std::string bytes);
  Id add_string(std::string_view text);
  Id add_properties(std::string bytes);
  Id name_attribute(std::string_view name);
  Id dictionary_attribute(const std::vector<std::pair<Id, Id>>& pairs);
  Kind described(const wire::Names::Operation& operation) const;

  const wire::Path nowhere_;
  const wire::Sections& sections_;
  wire::Names names_;
  wire::EntryTable entries_;
  std::uint32_t vhlo_, builtin_;
  std::deque<Kind> kinds_;  // which stay where they are
  std::size_t old_kinds_, old_attributes_, old_types_;
  std::vector<std::span<const std::uint8_t>> old_properties_;
  std::deque<std::optional<Type>> types_;  // which stay where they are

  std::deque<std::string> added_strings_;
  std::vector<Added> added_attributes_, added_types_;
  std::vector<std::string> added_properties_;
  std::unordered_map<std::string, Id, wire::SeededHash> known_types_, known_attributes_, known_properties_;
  std::unordered_map<std::string_view, Id, wire::SeededHash> known_kinds_, known_strings_;
};

/// Numbers as MLIR bytecode has them, at the end of a text.
void put_number(std::string& text, std::uint64_t number);
void put_signed(std::string& text, std::int64_t number);

class Parts {
 public:
  /// The bytes have to stay, and have to be checked (wire/bytecode/bytecode.h). Throws RunError where the module is in
  /// a form that is not known here.
  Parts(std::span<const std::uint8_t> module, const wire::Path& where);

  Tables& tables() { return tables_; }
  /// Throws RunError for code that jumps between blocks.
  Code code() const;

  /// The module with this at its top, and with what was added to the tables.
  std::vector<std::uint8_t> written(const Block& top) const;

 private:
  std::span<const std::uint8_t> module_;
  const wire::Path& where_;
  wire::Sections sections_;
  Tables tables_;
};

}  // namespace jaxexp::runtime::refine
