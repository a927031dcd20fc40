#include "wire/bytecode/inventory.h"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "wire/bytecode/module.h"

namespace jaxexp::wire {
namespace {

constexpr std::array<std::string_view, 2> counts = {"mhlo.num_partitions", "mhlo.num_replicas"};
constexpr std::array<std::string_view, 2> of_values = {"arg_attrs", "res_attrs"};

/// Keeps each combination of a kind of operation with its attributes once.
struct Seen {
  using Place = std::pair<std::size_t, std::size_t>;  // of properties in their section

  void operation(std::size_t kind, std::optional<std::uint64_t> dictionary, const std::optional<Cursor>& own) {
    const std::uint64_t key = dictionary ? *dictionary + 1 : 0;
    if (!own)
      without_properties.emplace(kind, key);
    else
      with_properties.emplace_back(kind, key, *own);
  }
  void value(std::uint64_t type) { types.insert(type); }
  void place(std::size_t kind, std::size_t function, bool in_body, bool has_arrays) {
    kinds_in.emplace(in_body ? bodies : function, kind, has_arrays);
  }

  std::set<std::pair<std::size_t, std::uint64_t>> without_properties;
  std::vector<std::tuple<std::size_t, std::uint64_t, Cursor>> with_properties;
  std::set<std::uint64_t> types;
  static constexpr std::size_t bodies = 0;                        // in place of a function, which are counted from 1
  std::set<std::tuple<std::size_t, std::size_t, bool>> kinds_in;  // a function, a kind, whether with arrays
};

class Taking {
 public:
  explicit Taking(Module<Seen>& module) : module_(module), names_(module.names()), tables_(module.tables()) {}

  Inventory inventory() {
    Contents contents = module_.contents();
    found_.operations = std::move(contents.operations);
    found_.unchecked = std::move(contents.unchecked);
    if (!contents.custom_calls) found_.custom_calls.reset();
    for (const auto& [kind, dictionary] : module_.observer().without_properties)
      look_at(kind, dictionary, std::nullopt);
    for (const auto& [kind, dictionary, own] : module_.observer().with_properties) look_at(kind, dictionary, own);
    for (const std::uint64_t type : module_.observer().types) value(tables_.attributes() + type);
    const std::vector<bool> in_bodies = module_.graph().called_in_bodies();
    for (const auto& [function, kind, has_arrays] : module_.observer().kinds_in)
      if (function == Seen::bodies || in_bodies[function - 1])
        found_.in_bodies[names_.full_name_of(names_.operations[kind])] |= has_arrays;
    return std::move(found_);
  }

 private:
  /// Of an operation: an attribute that it always has, by its name and its number.
  struct Call {
    std::optional<std::uint64_t> target, has_side_effect;
    void take(std::string_view name, std::uint64_t attribute) {
      if (name == "call_target_name") target = attribute;
      if (name == "has_side_effect") has_side_effect = attribute;
    }
  };

  void look_at(std::size_t kind, std::uint64_t dictionary, std::optional<Cursor> own) {
    const Names::Operation& operation = names_.operations[kind];
    const std::string_view dialect = names_.dialect_of(operation), name = names_.name_of(operation);
    const bool is_call = name.starts_with("custom_call");
    const KnownOperation* const known = dialect == "vhlo" ? known_operation(name) : nullptr;
    Call call;
    if (own && known) {
      std::string_view names = known->names;
      for (std::size_t i = 0; i < known->kinds.size(); ++i) {
        const std::string_view one = names.substr(0, names.find(' '));
        names.remove_prefix(std::min(one.size() + 1, names.size()));
        attribute(one, own->number(), call);
      }
    } else if (own && dialect != "builtin" && dialect != "sdy") {  // those read their own attributes only
      found_.unreadable.insert(names_.full_name_of(operation));
    }
    if (dictionary > 0) {
      const auto entries = tables_.elements(dictionary - 1);
      for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
        const std::uint32_t string = tables_.string(entries[i]);
        if (string == AttributesAndTypes::no_string) {
          found_.unreadable.insert(names_.full_name_of(operation));
          continue;
        }
        const std::string_view one = names_.strings[string];
        attribute(one, entries[i + 1], call);
        if (!(known && has(known->names, one))) (is_call ? found_.call_attributes : found_.attributes).insert(one);
      }
      // A dictionary as a text, or something else in its place.
      if (entries.empty()) found_.unreadable.insert(names_.full_name_of(operation));
    }
    if (is_call) note(call);
  }

  void attribute(std::string_view name, std::uint64_t value, Call& call) {
    call.take(name, value);
    if (std::ranges::find(counts, name) != counts.end()) found_.device_counts[names_view(name)] = integer(value);
    if (std::ranges::find(of_values, name) == of_values.end()) return;
    for (const std::uint32_t one : tables_.elements(value)) {
      const auto entries = tables_.elements(one);
      for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
        if (const std::uint32_t string = tables_.string(entries[i]); string != AttributesAndTypes::no_string)
          found_.attributes.insert(names_.strings[string]);
    }
  }

  void note(const Call& call) {
    if (!found_.custom_calls) return;
    const auto string = call.target ? tables_.string(*call.target) : AttributesAndTypes::no_string;
    if (string == AttributesAndTypes::no_string) return found_.custom_calls.reset();
    bool& has_side_effect = (*found_.custom_calls)[names_.strings[string]];
    has_side_effect = has_side_effect || !call.has_side_effect || is_true(*call.has_side_effect);
  }

  /// Whether a truth value is true, or something else.
  bool is_true(std::uint64_t attribute) const {
    constexpr unsigned truth = 2;
    if (tables_.vhlo_kind(attribute) != truth) return true;
    Cursor data = tables_.data(attribute);
    data.number();  // the kind
    return data.number() != 0;
  }

  std::optional<std::int64_t> integer(std::uint64_t attribute) const {
    constexpr std::uint64_t of_builtin = 8, of_vhlo = 9;
    if (!tables_.encoded(attribute)) return std::nullopt;
    Cursor data = tables_.data(attribute);
    const std::uint64_t kind = data.number();
    const std::string_view dialect = tables_.dialect(attribute);
    if (!(dialect == "builtin" && kind == of_builtin) && !(dialect == "vhlo" && kind == of_vhlo)) return std::nullopt;
    const std::int32_t bits = tables_.bits(tables_.attributes() + data.number());
    if (bits <= 0 || bits > 64) return std::nullopt;
    return bits <= 8 ? static_cast<std::int8_t>(data.byte()) : data.signed_number();
  }

  /// The type of a value.
  void value(std::uint64_t type) {
    constexpr std::uint64_t vhlo_tensor = 20, vhlo_bounded = 21, vhlo_token = 22, vhlo_tuple = 23;
    constexpr std::uint64_t builtin_tensor = 13, builtin_bounded = 14, builtin_tuple = 15;
    const std::string dialect(tables_.dialect(type));
    const bool is_vhlo = dialect == "vhlo";
    if (!tables_.encoded(type) || (!is_vhlo && dialect != "builtin")) return void(found_.unknown_types.insert(dialect));
    Cursor data = tables_.data(type);
    const std::uint64_t kind = data.number();
    if (kind == (is_vhlo ? vhlo_tensor : builtin_tensor)) return array(type, data);
    if (kind == (is_vhlo ? vhlo_bounded : builtin_bounded)) return void(found_.unknown_types.insert("with bounds"));
    if (kind == (is_vhlo ? vhlo_tuple : builtin_tuple)) {
      for (const std::uint32_t part : tables_.elements(type)) value(part);
      return;
    }
    if (!is_vhlo || kind != vhlo_token) found_.unknown_types.insert(dialect + " type " + std::to_string(kind));
  }

  void array(std::uint64_t type, Cursor shape) {
    const std::int32_t bits = tables_.bits(type);
    std::uint64_t bytes = static_cast<std::uint64_t>((bits + 7) / 8);
    for (std::uint64_t left = shape.number(); left > 0; --left) {
      const std::int64_t size = shape.signed_number();
      if (size >= 0)
        bytes *= static_cast<std::uint64_t>(size);
      else
        found_.has_open_sizes = true;
    }
    constexpr unsigned signed_of_two_bits = 31;
    if (bits == 2)  // on CPUs, XLA has too little memory for some of them
      found_.unknown_types.insert(tables_.element(type - tables_.attributes()) == signed_of_two_bits ? "tensor<?xi2>"
                                                                                                     : "tensor<?xui2>");
    if (bits <= 0) return found_.largest_array.reset();
    if (found_.largest_array) found_.largest_array = std::max(*found_.largest_array, bytes);
  }

  static bool has(std::string_view names, std::string_view name) {
    for (std::size_t at = names.find(name); at != names.npos; at = names.find(name, at + 1)) {
      const std::size_t end = at + name.size();
      if ((at == 0 || names[at - 1] == ' ') && (end == names.size() || names[end] == ' ')) return true;
    }
    return false;
  }

  static std::string_view names_view(std::string_view name) { return *std::ranges::find(counts, name); }

  Module<Seen>& module_;
  const Names& names_;
  const AttributesAndTypes& tables_;
  Inventory found_;
};

}  // namespace

std::optional<Inventory> read_inventory(std::span<const std::uint8_t> module, const Path& where) {
  Module<Seen> read(module, where);
  if (!read.check()) return std::nullopt;
  return Taking(read).inventory();
}

}  // namespace jaxexp::wire
