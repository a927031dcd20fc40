// What is written is checked: a plugin's reader trusts it.
#include "runtime/refine/parts.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <tuple>

#include "jaxexp/run_error.h"
#include "wire/base/dtype.h"
#include "wire/bytecode/bytecode.h"

namespace jaxexp::runtime::refine {

// Values are numbered by scopes in bytecode, and over the whole module in memory. The order in which a value is used
// is not kept: it means nothing.

namespace {

namespace since = wire::since;

using namespace wire::parts_of_operation;

class Reader {
 public:
  explicit Reader(std::uint64_t version, unsigned most_sections = UINT_MAX)
      : version_(version), most_sections_(most_sections) {}

  Code read(wire::Cursor section) {
    Code code;
    Scope scope;
    Defined defined{0, 0};
    code.top = block(section, scope, defined);
    code.values = values_;
    return code;
  }

 private:
  using Scope = std::vector<Id>;  // values by their numbers

  /// The next value of a region, and how many are left to it.
  struct Defined {
    Id next;
    std::uint64_t left;
  };

  static Id number(wire::Cursor& at) { return static_cast<Id>(at.number()); }

  Id define(Defined& defined, std::size_t count) {
    if (count > defined.left) {  // regions that say they have no values: nothing refers to these
      const Id first = values_;
      values_ += static_cast<Id>(count);
      return first;
    }
    const Id first = defined.next;
    defined.next += static_cast<Id>(count);
    defined.left -= count;
    return first;
  }

  Region region(wire::Cursor& at, Scope& scope) {
    const std::uint64_t blocks = at.number();
    if (blocks == 0) return {};
    if (blocks > 1) refuse("its code jumps between blocks");
    const std::uint64_t count = at.number();
    const std::size_t outside = scope.size();
    Defined defined{values_, count};
    for (std::uint64_t i = 0; i < count; ++i) scope.push_back(values_++);
    Region region;
    region.push_back(block(at, scope, defined));
    scope.resize(outside);
    return region;
  }

  Block block(wire::Cursor& at, Scope& scope, Defined& defined) {
    Block block;
    const std::uint64_t coded = at.number();
    if (coded & 1) {
      block.arguments.resize(at.count("block arguments"));
      for (auto& [type, location] : block.arguments) {
        const std::uint64_t argument = at.number();
        const bool optional = version_ >= since::optional_locations;
        type = static_cast<Id>(optional ? argument >> 1 : argument);
        if (!optional || (argument & 1)) location = number(at);
      }
      block.first_argument = define(defined, block.arguments.size());
      if (version_ >= since::use_lists && at.byte() != 0) skip_use_order(at, block.arguments.size());
    }
    const std::uint64_t count = at.counted(coded >> 1, "operations");
    for (std::uint64_t i = 0; i < count; ++i) operation(at, scope, defined, block.operations.emplace_back());
    return block;
  }

  void operation(wire::Cursor& at, Scope& scope, Defined& defined, Operation& found) {
    found.kind = number(at);
    const unsigned has = at.byte();
    found.location = number(at);
    if (has & has_attributes) found.dictionary = number(at);
    if (has & has_properties) found.properties = number(at);
    if (has & has_results) {
      found.results.resize(at.count("results"));
      for (Id& type : found.results) type = number(at);
    }
    if (has & has_operands) {
      found.operands.resize(at.count("operands"));
      for (Id& value : found.operands) value = scope[at.index(scope.size(), "values")];
    }
    if ((has & has_successors) && at.number() != 0) refuse("its code jumps between blocks");
    found.first_result = define(defined, found.results.size());
    if (version_ >= since::use_lists && (has & has_use_lists)) skip_use_order(at, found.results.size());
    if (has & has_regions) regions(at, scope, found);
  }

  void regions(wire::Cursor& at, Scope& outside, Operation& found) {
    const std::uint64_t coded = at.number(), count = at.counted(coded >> 1, "regions");
    found.is_isolated = coded & 1;
    if (count == 0) return;
    Scope inside;
    const bool in_section = found.is_isolated && version_ >= since::isolated_sections;
    wire::Cursor section = in_section ? at.section().second : at;
    if (in_section && sections_ == most_sections_) return;
    sections_ += in_section;
    for (std::uint64_t i = 0; i < count; ++i)
      found.regions.push_back(region(in_section ? section : at, found.is_isolated ? inside : outside));
    sections_ -= in_section;
  }

  static void skip_use_order(wire::Cursor& at, std::size_t values) {
    for (std::uint64_t left = values > 1 ? at.number() : 1; left > 0; --left) {
      if (values > 1) at.number();
      for (std::uint64_t numbers = at.number() >> 1; numbers > 0; --numbers) at.number();
    }
  }

  const std::uint64_t version_;
  const unsigned most_sections_;  // in each other
  unsigned sections_ = 0;
  Id values_ = 0;
};

class Writer {
 public:
  explicit Writer(std::uint64_t version) : version_(version) {}

  void block(std::string& text, const Block& block) {
    const bool has_arguments = !block.arguments.empty();
    put_number(text, block.operations.size() << 1 | has_arguments);
    if (has_arguments) {
      put_number(text, block.arguments.size());
      for (const auto& [type, location] : block.arguments) {
        const bool optional = version_ >= since::optional_locations;
        put_number(text, optional ? std::uint64_t{type} << 1 | location.has_value() : type);
        if (location) put_number(text, *location);
      }
      number_values(block.first_argument, block.arguments.size());
      if (version_ >= since::use_lists) text.push_back(0);
    }
    for (const Operation& operation : block.operations) this->operation(text, operation);
  }

 private:
  void number_values(Id first, std::size_t count) {
    if (numbers_.size() < first + count) numbers_.resize(first + count);
    for (std::size_t i = 0; i < count; ++i) numbers_[first + i] = next_++;
  }

  void operation(std::string& text, const Operation& operation) {
    put_number(text, operation.kind);
    const unsigned has = (operation.dictionary ? has_attributes : 0) | (operation.properties ? has_properties : 0) |
                         (operation.results.empty() ? 0 : has_results) |
                         (operation.operands.empty() ? 0 : has_operands) |
                         (operation.regions.empty() ? 0 : has_regions);
    text.push_back(static_cast<char>(has));
    put_number(text, operation.location);
    if (operation.dictionary) put_number(text, *operation.dictionary);
    if (operation.properties) put_number(text, *operation.properties);
    if (has & has_results) {
      put_number(text, operation.results.size());
      for (const Id type : operation.results) put_number(text, type);
    }
    if (has & has_operands) {
      put_number(text, operation.operands.size());
      for (const Id value : operation.operands) put_number(text, numbers_[value]);
    }
    number_values(operation.first_result, operation.results.size());
    if (has & has_regions) regions(text, operation);
  }

  void regions(std::string& text, const Operation& operation) {
    put_number(text, operation.regions.size() << 1 | operation.is_isolated);
    const bool in_section = operation.is_isolated && version_ >= since::isolated_sections;
    std::string section;
    std::string& content = in_section ? section : text;
    const auto outside = std::pair(next_, end_);
    if (operation.is_isolated) next_ = end_ = 0;
    for (const Region& region : operation.regions) this->region(content, region);
    std::tie(next_, end_) = outside;
    if (!in_section) return;
    text.push_back(static_cast<char>(wire::Section::code));
    put_number(text, section.size());
    text += section;
  }

  void region(std::string& text, const Region& region) {
    put_number(text, region.size());
    if (region.empty()) return;
    const Block& only = region.front();
    std::size_t values = only.arguments.size();
    for (const Operation& operation : only.operations) values += operation.results.size();
    put_number(text, values);
    // The values of regions inside of this one come behind all of its own.
    const Id outside = std::exchange(next_, end_);
    end_ += static_cast<Id>(values);
    block(text, only);
    end_ -= static_cast<Id>(values);
    next_ = outside;
  }

  const std::uint64_t version_;
  std::vector<Id> numbers_;  // of values, in the scope that is written
  Id next_ = 0, end_ = 0;    // of the values of the region that is written, and of all that it may use
};

}  // namespace

Code read_code(wire::Cursor section, std::uint64_t version) { return Reader(version).read(section); }

Block read_heads(wire::Cursor section, std::uint64_t version) {
  return Reader(version, /*most_sections=*/1).read(section).top;  // that of the module
}

std::string written(const Block& top, std::uint64_t version) {
  std::string text;
  Writer(version).block(text, top);
  return text;
}

// Attributes and types are numbered apart, so that both can grow at their ends.

namespace {

// Attributes and types of the builtin dialect. A location is that of a call, a line, fused ones, or has a name.
constexpr std::uint64_t builtin_array = 0, builtin_dictionary = 1, builtin_string = 2, builtin_number = 8,
                        builtin_call = 10, builtin_line = 11, builtin_fused = 12, builtin_name = 14, builtin_lines = 22;
constexpr std::uint64_t builtin_integer = 0, builtin_tensor = 13;

std::uint32_t dialect_of(const wire::Names& names, std::string_view name) {
  const auto found = std::ranges::find(names.dialects, name);
  if (found == names.dialects.end()) refuse("it is not a portable artifact of StableHLO");
  return static_cast<std::uint32_t>(found - names.dialects.begin());
}

std::string_view base_of(std::string_view name) {
  const std::size_t version = name.rfind("_v");
  return version == name.npos ? name : name.substr(0, version);
}

}  // namespace

void refuse(const std::string& reason) { throw RunError(RunError::Reason::unsupported, reason); }

void put_number(std::string& text, std::uint64_t number) {
  unsigned more = 0;  // bytes behind the first one
  while (more < 8 && number >> (7 * (more + 1)) != 0) ++more;
  if (more == 8) {
    text.push_back(0);
  } else {
    number = (number << 1 | 1) << more;
    ++more;
  }
  for (unsigned i = 0; i < more; ++i) text.push_back(static_cast<char>(number >> (8 * i)));
}

void put_signed(std::string& text, std::int64_t number) {
  const auto bits = static_cast<std::uint64_t>(number);
  put_number(text, bits << 1 ^ (number < 0 ? ~std::uint64_t{0} : 0));
}

Tables::Tables(const wire::Sections& sections)
    : sections_(sections),
      names_(sections),
      entries_(sections.needed(wire::Section::entries), sections.needed(wire::Section::entry_offsets), names_.dialects),
      vhlo_(dialect_of(names_, "vhlo")),
      builtin_(dialect_of(names_, "builtin")),
      old_kinds_(names_.operations.size()),
      old_attributes_(entries_.attributes()),
      old_types_(entries_.size() - entries_.attributes()),
      types_(old_types_) {
  for (const wire::Names::Operation& operation : names_.operations) {
    kinds_.push_back(described(operation));
    if (kinds_.back().is_vhlo) known_kinds_.try_emplace(kinds_.back().name, static_cast<Id>(kinds_.size() - 1));
  }
  if (const auto& section = sections[wire::Section::properties]) {
    wire::Cursor at = *section;
    for (std::uint64_t left = at.count("properties"); left > 0; --left)
      old_properties_.push_back(at.bytes(at.number()));
  }
  // The types that are there are found again; attributes may be large, and need not be.
  for (Id type = 0; type < old_types_; ++type) {
    const std::size_t entry = old_attributes_ + type;
    if (entries_.dialect(entry) != "vhlo" || !entries_.encoded(entry)) continue;
    wire::Cursor at = entries_.data(entry);
    const auto bytes = at.bytes(at.left());
    known_types_.try_emplace(std::string(bytes.begin(), bytes.end()), type);
  }
}

Tables::Kind Tables::described(const wire::Names::Operation& operation) const {
  const std::string_view dialect = names_.dialect_of(operation), name = names_.name_of(operation);
  const bool is_vhlo = dialect == "vhlo";
  return {dialect,
          name,
          is_vhlo ? base_of(name) : name,
          is_vhlo,
          operation.registered,
          is_vhlo ? wire::known_operation(name) : nullptr};
}

Id Tables::vhlo_kind(std::string_view name) {
  if (const auto found = known_kinds_.find(name); found != known_kinds_.end()) return found->second;
  const Id string = add_string(name);
  const wire::Names::Operation operation{vhlo_, string, version() >= since::native_properties};
  names_.operations.push_back(operation);
  kinds_.push_back(described(operation));
  const Id kind = static_cast<Id>(kinds_.size() - 1);
  known_kinds_.emplace(kinds_.back().name, kind);
  return kind;
}

Id Tables::add_string(std::string_view text) {
  if (const auto found = known_strings_.find(text); found != known_strings_.end()) return found->second;
  const std::string& added = added_strings_.emplace_back(text);
  names_.strings.emplace_back(added);
  const Id string = static_cast<Id>(names_.strings.size() - 1);
  known_strings_.emplace(added, string);
  return string;
}

Tables::Encoded Tables::encoded(const Added& added) const {
  wire::Cursor at({reinterpret_cast<const std::uint8_t*>(added.bytes.data()), added.bytes.size()}, nowhere_);
  const std::uint64_t kind = at.number();
  return {added.dialect == vhlo_, added.dialect == builtin_, kind, at};
}

Tables::Encoded Tables::encoded(std::size_t entry) const {
  wire::Cursor at = entries_.data(entry);
  if (!entries_.encoded(entry)) return {false, false, 0, at};
  const std::string_view dialect = entries_.dialect(entry);
  const std::uint64_t kind = at.number();
  return {dialect == "vhlo", dialect == "builtin", kind, at};
}

Tables::Encoded Tables::attribute_at(Id attribute) const {
  return attribute < old_attributes_ ? encoded(attribute) : encoded(added_attributes_[attribute - old_attributes_]);
}

Tables::Encoded Tables::type_at(Id type) const {
  return type < old_types_ ? encoded(old_attributes_ + type) : encoded(added_types_[type - old_types_]);
}

wire::Cursor Tables::data(Id attribute, std::uint64_t kind, const char* what) const {
  const Encoded found = attribute_at(attribute);
  if (!found.is_vhlo || found.kind != kind) refuse(std::string("it has an attribute that is not ") + what);
  return found.at;
}

bool Tables::has_dynamic_types() {
  for (Id type = 0; type < old_types_; ++type)
    if (this->type(type).is_dynamic) return true;
  return false;
}

const Type& Tables::type(Id type) {
  auto& known = types_[type];
  if (!known) known = decoded(type);
  return *known;
}

Type Tables::decoded(Id type) {
  Type found;
  Encoded coded = type_at(type);
  if (coded.is_builtin && coded.kind == builtin_tensor) {  // between casts, for Shardy
    for (std::uint64_t left = coded.at.count("dimensions"); left > 0; --left)
      found.is_dynamic |= coded.at.signed_number() == dynamic_size;
    return found;
  }
  if (!coded.is_vhlo) return found;
  if (coded.kind == vhlo::type::tuple) {
    for (std::uint64_t left = coded.at.count("types"); left > 0; --left)
      found.is_dynamic |= this->type(static_cast<Id>(coded.at.number())).is_dynamic;
    return found;
  }
  if (coded.kind != vhlo::type::tensor && coded.kind != vhlo::type::encoded) return found;
  found.is_tensor = coded.kind == vhlo::type::tensor;
  if (!found.is_tensor) coded.at.number();  // what it says beside its shape
  const std::size_t rank = coded.at.count("dimensions");
  if (rank > most_integers) refuse("it has an array of more than " + std::to_string(most_integers) + " dimensions");
  found.shape.resize(rank);
  for (std::int64_t& size : found.shape) size = coded.at.signed_number();
  found.element = static_cast<Id>(coded.at.number());
  found.is_dynamic = std::ranges::find(found.shape, dynamic_size) != found.shape.end();
  return found;
}

Element Tables::element(Id type) const {
  const Encoded coded = type_at(type);
  const wire::Dtype* const dtype = coded.is_vhlo ? wire::dtype_of_vhlo(coded.kind) : nullptr;
  const bool is_boolean = coded.is_vhlo && coded.kind == vhlo::type::boolean;
  // Whole bytes, and truth values.
  if (!is_boolean && !(dtype && dtype->is_integer() && !dtype->is_part_of_a_byte()))
    return {coded.kind, 0, false, false};
  return {coded.kind, dtype->bits, true, dtype->numbers == wire::Dtype::Numbers::integers};
}

std::string_view Tables::dtype(Id type) const {
  Encoded coded = type_at(type);
  if (!coded.is_vhlo) return {};
  if (coded.kind == vhlo::type::complex) {
    const std::string_view part = dtype(static_cast<Id>(coded.at.number()));
    return part == "float32" ? "complex64" : part == "float64" ? "complex128" : "";
  }
  const wire::Dtype* const found = wire::dtype_of_vhlo(coded.kind);
  return found ? found->name : std::string_view();
}

Id Tables::add_type(std::string bytes) {
  const auto [known, is_new] = known_types_.try_emplace(bytes, static_cast<Id>(types_.size()));
  if (is_new) {
    added_types_.push_back({vhlo_, std::move(bytes)});
    types_.emplace_back();
  }
  return known->second;
}

Id Tables::add_attribute(std::uint32_t dialect, std::string bytes) {
  const auto next = static_cast<Id>(old_attributes_ + added_attributes_.size());
  const auto [known, is_new] = known_attributes_.try_emplace(static_cast<char>(dialect == vhlo_) + bytes, next);
  if (is_new) added_attributes_.push_back({dialect, std::move(bytes)});
  return known->second;
}

Id Tables::tensor_type(Id element, const Shape& shape) {
  std::string bytes;
  put_number(bytes, vhlo::type::tensor);
  put_number(bytes, shape.size());
  for (const std::int64_t size : shape) put_signed(bytes, size);
  put_number(bytes, element);
  return add_type(std::move(bytes));
}

Id Tables::function_type(std::span<const Id> inputs, std::span<const Id> results) {
  std::string bytes;
  put_number(bytes, vhlo::type::function);
  for (const auto types : {inputs, results}) {
    put_number(bytes, types.size());
    for (const Id type : types) put_number(bytes, type);
  }
  return add_type(std::move(bytes));
}

Id Tables::scalar_element(std::uint64_t kind) {
  std::string bytes;
  put_number(bytes, kind);
  return add_type(std::move(bytes));
}

std::vector<Id> Tables::properties(const Operation& operation) const {
  std::vector<Id> found;
  const auto bytes = [&]() -> std::span<const std::uint8_t> {
    if (*operation.properties < old_properties_.size()) return old_properties_[*operation.properties];
    const std::string& added = added_properties_[*operation.properties - old_properties_.size()];
    return {reinterpret_cast<const std::uint8_t*>(added.data()), added.size()};
  };
  wire::Cursor at(bytes(), nowhere_);
  while (!at.at_end()) found.push_back(static_cast<Id>(at.number()));
  return found;
}

std::vector<std::pair<Id, Id>> Tables::pairs(Id dictionary) const {
  Encoded coded = attribute_at(dictionary);
  std::vector<std::pair<Id, Id>> found;
  if (!coded.is_builtin || coded.kind != builtin_dictionary) return found;
  for (std::uint64_t left = coded.at.count("pairs"); left > 0; --left) {
    const auto name = static_cast<Id>(coded.at.number());
    found.emplace_back(name, static_cast<Id>(coded.at.number()));
  }
  return found;
}

bool Tables::is_name(Id attribute, std::string_view name) const {
  Encoded coded = attribute_at(attribute);
  return coded.is_builtin && coded.kind == builtin_string && names_.strings[coded.at.number()] == name;
}

std::optional<Id> Tables::attribute(const Operation& operation, std::string_view name) const {
  const Kind& kind = kinds_[operation.kind];
  if (operation.properties && kind.registered && kind.is_vhlo)
    if (const auto at = kind.place_of(name)) return properties(operation).at(*at);
  return operation.dictionary ? in_dictionary(*operation.dictionary, name) : std::nullopt;
}

std::string Tables::place_of(Id location) const {
  std::string name;
  for (unsigned depth = 0; depth < 16; ++depth) {
    Encoded coded = attribute_at(location);
    if (!coded.is_builtin) break;
    if (coded.kind == builtin_name) {
      const std::string_view said = text(static_cast<Id>(coded.at.number()));
      if (name.empty()) name = '\'' + wire::shortened(said) + '\'';
    } else if (coded.kind == builtin_line || coded.kind == builtin_lines) {
      std::string line = wire::shortened(text(static_cast<Id>(coded.at.number())));
      const bool has_line = coded.kind == builtin_line || coded.at.number() > 0;  // numbers that follow
      if (has_line) line += ':' + std::to_string(coded.at.number());
      return name.empty() ? line : name + " (" + line + ')';
    } else if (coded.kind != builtin_call && (coded.kind != builtin_fused || coded.at.number() == 0)) {
      break;
    }
    location = static_cast<Id>(coded.at.number());
  }
  return name;
}

Id Tables::needed(const Operation& operation, std::string_view name) const {
  const auto found = attribute(operation, name);
  if (!found) refuse("its operation " + kinds_[operation.kind].full_name() + " has no " + std::string(name));
  return *found;
}

std::optional<std::string_view> Tables::symbol(const Operation& operation) const {
  if (const auto name = attribute(operation, "sym_name")) return text(*name);
  const Kind& kind = kinds_[operation.kind];
  if (!operation.properties || !kind.registered || kind.is_vhlo) return std::nullopt;
  for (const Id property : properties(operation))
    if (property < old_attributes_ && is_text(property)) return text(property);
  return std::nullopt;
}

bool Tables::is_text(Id attribute) const {
  const Encoded coded = attribute_at(attribute);
  return (coded.is_vhlo && coded.kind == vhlo::attribute::string) || (coded.is_builtin && coded.kind == builtin_string);
}

std::string_view Tables::text(Id attribute) const {
  if (!is_text(attribute)) refuse("it has an attribute that is not a text");
  return names_.strings[attribute_at(attribute).at.number()];
}

std::int64_t Tables::integer(Id attribute) const {
  if (Encoded coded = attribute_at(attribute); coded.is_builtin && coded.kind == builtin_number) {
    Encoded type = type_at(static_cast<Id>(coded.at.number()));
    const std::uint64_t bits = type.is_builtin && type.kind == builtin_integer ? type.at.number() >> 2 : 0;
    if (bits <= 8 || bits > 64) refuse("it has an integer of a type that is not known");
    return coded.at.signed_number();
  }
  wire::Cursor at = data(attribute, vhlo::attribute::integer, "an integer");
  const Element type = element(static_cast<Id>(at.number()));
  if (!type.is_integer) refuse("it has an integer of a type that is not known");
  return type.bits <= 8 ? static_cast<std::int8_t>(at.byte()) : at.signed_number();
}

bool Tables::boolean(Id attribute) const {
  return data(attribute, vhlo::attribute::boolean, "a truth value").number() != 0;
}

std::uint64_t Tables::number(Id attribute) const {
  Encoded coded = attribute_at(attribute);
  if (!coded.is_vhlo) refuse("it has an attribute that is not one of several choices");
  return coded.at.number();
}

std::vector<Id> Tables::array(Id attribute) const {
  const Encoded coded = attribute_at(attribute);
  const bool is_builtin = coded.is_builtin && coded.kind == builtin_array;
  wire::Cursor at = is_builtin ? coded.at : data(attribute, vhlo::attribute::array, "an array");
  std::vector<Id> found(at.count("attributes"));
  for (Id& one : found) one = static_cast<Id>(at.number());
  return found;
}

std::optional<Integers> Tables::integers(Id attribute) {
  wire::Cursor at = data(attribute, vhlo::attribute::tensor, "a tensor");
  const Type& type = this->type(static_cast<Id>(at.number()));
  if (!type.is_tensor || type.is_dynamic) return std::nullopt;
  const Element element = this->element(type.element);
  const auto count = count_of(type.shape);
  if (!element.is_integer || !count || *count > static_cast<std::int64_t>(most_integers)) return std::nullopt;
  const auto bytes = at.bytes(at.number());
  const std::size_t each = (element.bits + 7) / 8, size = static_cast<std::size_t>(*count);
  // One byte may also be a truth value for all, or the bits of up to eight.
  if (element.is_boolean() && size > 1 && bytes.size() == 1 && bytes[0] != 0 && bytes[0] != 0xFF) return std::nullopt;
  if (bytes.size() != each && bytes.size() != each * size) return std::nullopt;
  Integers found(size);
  for (std::size_t i = 0; i < size; ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + (bytes.size() == each ? 0 : i * each), each);
    found[i] = element.is_boolean() ? value != 0 : wrapped(static_cast<std::int64_t>(value), element);
  }
  return found;
}

Integers Tables::needed_integers(const Operation& operation, std::string_view name) {
  auto found = integers(needed(operation, name));
  if (!found) refuse("its operation " + kinds_[operation.kind].full_name() + " has too long a " + std::string(name));
  return std::move(*found);
}

std::pair<std::vector<Id>, std::vector<Id>> Tables::function(Id attribute) const {
  Encoded type = type_at(static_cast<Id>(data(attribute, vhlo::attribute::type, "a type").number()));
  if (!type.is_vhlo || type.kind != vhlo::type::function) refuse("it has a function without a function's type");
  std::pair<std::vector<Id>, std::vector<Id>> found;
  for (std::vector<Id>* const types : {&found.first, &found.second}) {
    types->resize(type.at.count("types"));
    for (Id& one : *types) one = static_cast<Id>(type.at.number());
  }
  return found;
}

bool Tables::is_token(Id type) const {
  const Encoded coded = type_at(type);
  return coded.is_vhlo && coded.kind == vhlo::type::token;
}

std::optional<Id> Tables::in_dictionary(Id dictionary, std::string_view name) const {
  for (const auto& [key, value] : pairs(dictionary))
    if (is_name(key, name)) return value;
  return std::nullopt;
}

std::optional<MeshAxes> Tables::mesh_axes(Id attribute) const {
  Encoded coded = attribute_at(attribute);
  if (!coded.is_vhlo || coded.kind != vhlo::attribute::groups_of_axes) return std::nullopt;
  MeshAxes found{text(static_cast<Id>(coded.at.number())), {}};
  for (const Id axis : array(static_cast<Id>(coded.at.number()))) {
    wire::Cursor at = data(axis, vhlo::attribute::axis, "an axis");
    MeshAxes::Axis& added = found.axes.emplace_back();
    added.name = text(static_cast<Id>(at.number()));
    if (at.number() == 0) continue;
    wire::Cursor part = data(static_cast<Id>(at.number()), vhlo::attribute::sub_axis, "a part of an axis");
    const std::int64_t before = part.signed_number();
    added.part.emplace(before, part.signed_number());
  }
  return found;
}

Id Tables::string_attribute(std::string_view text) {
  std::string bytes;
  put_number(bytes, vhlo::attribute::string);
  put_number(bytes, add_string(text));
  return add_attribute(vhlo_, std::move(bytes));
}

Id Tables::array_attribute(std::span<const Id> elements) {
  std::string bytes;
  put_number(bytes, vhlo::attribute::array);
  put_number(bytes, elements.size());
  for (const Id element : elements) put_number(bytes, element);
  return add_attribute(vhlo_, std::move(bytes));
}

Id Tables::enum_attribute(std::uint64_t kind, std::uint64_t value) {
  std::string bytes;
  put_number(bytes, kind);
  put_number(bytes, value);
  return add_attribute(vhlo_, std::move(bytes));
}

Id Tables::type_attribute(Id type) { return enum_attribute(vhlo::attribute::type, type); }
Id Tables::boolean_attribute(bool value) { return enum_attribute(vhlo::attribute::boolean, value); }

Id Tables::integer_attribute(std::int64_t value) {
  std::string bytes;
  put_number(bytes, vhlo::attribute::integer);
  put_number(bytes, scalar_element(vhlo::type::si64));
  put_signed(bytes, value);
  return add_attribute(vhlo_, std::move(bytes));
}

Id Tables::tensor_attribute(Id type, std::span<const std::int64_t> values) {
  const std::size_t each = (element(this->type(type).element).bits + 7) / 8;
  const bool is_same = std::ranges::all_of(values, [&](std::int64_t value) { return value == values.front(); });
  if (is_same && !values.empty()) values = values.first(1);
  std::string bytes;
  put_number(bytes, vhlo::attribute::tensor);
  put_number(bytes, type);
  put_number(bytes, each * values.size());
  for (const std::int64_t value : values)
    for (std::size_t i = 0; i < each; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return add_attribute(vhlo_, std::move(bytes));
}

Id Tables::sizes_attribute(std::span<const std::int64_t> values, const Shape& shape) {
  return tensor_attribute(tensor_type(scalar_element(vhlo::type::si64), shape), values);
}

Id Tables::sizes_attribute(std::span<const std::int64_t> values) {
  return sizes_attribute(values, {static_cast<std::int64_t>(values.size())});
}

Id Tables::add_properties(std::string bytes) {
  const auto next = static_cast<Id>(old_properties_.size() + added_properties_.size());
  const auto [known, is_new] = known_properties_.try_emplace(bytes, next);
  if (is_new) added_properties_.push_back(std::move(bytes));
  return known->second;
}

Id Tables::name_attribute(std::string_view name) {
  std::string bytes;
  put_number(bytes, builtin_string);
  put_number(bytes, add_string(name));
  return add_attribute(builtin_, std::move(bytes));
}

Id Tables::dictionary_attribute(const std::vector<std::pair<Id, Id>>& pairs) {
  std::string bytes;
  put_number(bytes, builtin_dictionary);
  put_number(bytes, pairs.size());
  for (const auto& [name, value] : pairs) put_number(bytes, name), put_number(bytes, value);
  return add_attribute(builtin_, std::move(bytes));
}

void Tables::set_attributes(Operation& operation, Named attributes) {
  operation.dictionary.reset(), operation.properties.reset();
  if (attributes.empty()) return;
  std::ranges::sort(attributes);  // by name, as readers expect it
  if (version() >= since::native_properties) {
    std::string bytes;
    for (const auto& [name, value] : attributes) put_number(bytes, value);
    operation.properties = add_properties(std::move(bytes));
    return;
  }
  std::vector<std::pair<Id, Id>> pairs;
  for (const auto& [name, value] : attributes) pairs.emplace_back(name_attribute(name), value);
  operation.dictionary = dictionary_attribute(pairs);
}

void Tables::remove_attribute(Operation& operation, std::string_view name) {
  if (!operation.dictionary) return;
  auto pairs = this->pairs(*operation.dictionary);
  std::erase_if(pairs, [&](const auto& pair) { return is_name(pair.first, name); });
  operation.dictionary = dictionary_attribute(pairs);
}

void Tables::replace_attribute(Operation& operation, std::string_view name, Id value) {
  const Kind& kind = kinds_[operation.kind];
  const auto at = kind.place_of(name);
  if (operation.properties && kind.registered && at) {
    std::vector<Id> values = properties(operation);
    values.at(*at) = value;
    std::string bytes;
    for (const Id one : values) put_number(bytes, one);
    operation.properties = add_properties(std::move(bytes));
    return;
  }
  if (!operation.dictionary) return;
  auto pairs = this->pairs(*operation.dictionary);
  for (auto& [key, old] : pairs)
    if (is_name(key, name)) old = value;
  operation.dictionary = dictionary_attribute(pairs);
}

std::string Tables::written_dialects() const {
  // What stands in front of the names of operations stays as it is.
  wire::Cursor whole = sections_.needed(wire::Section::dialects), at = whole;
  for (std::uint64_t left = at.number(); left > 0; --left)
    if ((at.number() & 1) != 0 && version() >= since::versioned_dialects) at.section();
  const auto head = whole.bytes(at.place());
  std::string text(head.begin(), head.end());
  if (version() >= since::counted_operations) at.number(), put_number(text, names_.operations.size());
  const auto rest = at.bytes(at.left());
  text.append(rest.begin(), rest.end());
  if (names_.operations.size() == old_kinds_) return text;
  put_number(text, vhlo_);
  put_number(text, names_.operations.size() - old_kinds_);
  for (std::size_t i = old_kinds_; i < names_.operations.size(); ++i) {
    const auto& [dialect, name, registered] = names_.operations[i];
    put_number(text, version() >= since::native_properties ? std::uint64_t{name} << 1 | registered : name);
  }
  return text;
}

std::pair<std::string, std::string> Tables::written_entries() const {
  std::string entries, offsets;
  put_number(offsets, old_attributes_ + added_attributes_.size());
  put_number(offsets, old_types_ + added_types_.size());
  const auto add_old = [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      wire::Cursor entry = entries_.data(i);
      put_number(offsets, entries_.dialect_number(i));
      put_number(offsets, 1);
      put_number(offsets, entry.left() << 1 | entries_.encoded(i));
      const auto bytes = entry.bytes(entry.left());
      entries.append(bytes.begin(), bytes.end());
    }
  };
  const auto add_new = [&](const std::vector<Added>& added) {
    for (const auto& [dialect, bytes] : added) {
      put_number(offsets, dialect);
      put_number(offsets, 1);
      put_number(offsets, bytes.size() << 1 | 1);
      entries += bytes;
    }
  };
  add_old(0, old_attributes_);
  add_new(added_attributes_);
  add_old(old_attributes_, old_types_);
  add_new(added_types_);
  return {std::move(entries), std::move(offsets)};
}

std::string Tables::written_strings() const {
  std::string text;
  put_number(text, names_.strings.size());
  for (std::size_t i = names_.strings.size(); i-- > 0;) put_number(text, names_.strings[i].size() + 1);
  for (const std::string_view string : names_.strings) text.append(string).push_back(0);
  return text;
}

std::string Tables::written_properties() const {
  std::string text;
  put_number(text, old_properties_.size() + added_properties_.size());
  for (const auto bytes : old_properties_) {
    put_number(text, bytes.size());
    text.append(bytes.begin(), bytes.end());
  }
  for (const std::string& bytes : added_properties_) {
    put_number(text, bytes.size());
    text += bytes;
  }
  return text;
}

namespace {

using wire::Section;

void put_section(std::vector<std::uint8_t>& module, Section kind, std::string_view content) {
  std::string head(1, static_cast<char>(kind));
  put_number(head, content.size());
  module.insert(module.end(), head.begin(), head.end());
  module.insert(module.end(), content.begin(), content.end());
}

wire::Sections found(std::span<const std::uint8_t> module, const wire::Path& where) {
  wire::Sections sections(module, where);
  if (sections.version() > wire::newest_bytecode) refuse("it is written in a newer MLIR bytecode than is known here");
  sections.find();
  return sections;
}

}  // namespace

Parts::Parts(std::span<const std::uint8_t> module, const wire::Path& where)
    : module_(module), where_(where), sections_(found(module, where)), tables_(sections_) {}

Code Parts::code() const { return read_code(sections_.needed(Section::code), sections_.version()); }

std::vector<std::uint8_t> Parts::written(const Block& top) const {
  const std::string code = refine::written(top, sections_.version());
  std::vector<std::uint8_t> found(module_.begin(), module_.begin() + sections_.head_size());
  const auto copy = [&](Section kind) {
    if (!sections_[kind]) return;
    wire::Cursor content = *sections_[kind];
    const auto bytes = content.bytes(content.left());
    put_section(found, kind, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  // What stands in resources has places of its own, and nothing that JAX exports has any.
  if (const auto& resources = sections_[Section::resources]; resources && resources->left() > 1)
    refuse("it has resources");
  const auto [entries, offsets] = tables_.written_entries();
  put_section(found, Section::dialects, tables_.written_dialects());
  put_section(found, Section::entry_offsets, offsets);
  put_section(found, Section::entries, entries);
  put_section(found, Section::code, code);
  copy(Section::resource_offsets);
  copy(Section::resources);
  put_section(found, Section::strings, tables_.written_strings());
  if (sections_.version() >= wire::since::native_properties)
    put_section(found, Section::properties, tables_.written_properties());
  wire::check_bytecode(found, where_);
  return found;
}

}  // namespace jaxexp::runtime::refine
