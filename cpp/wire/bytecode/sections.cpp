// The outermost level of a module in MLIR bytecode.
#include "wire/bytecode/sections.h"

#include "wire/base/digest.h"
#include "wire/base/text.h"

namespace jaxexp::wire {
namespace {

constexpr std::array<std::uint8_t, 4> first_word = {'M', 'L', 0xEF, 'R'};

/// What stands behind the first word.
Cursor behind_first_word(std::span<const std::uint8_t> module, const Path& where) {
  Cursor cursor(module, where);
  for (const std::uint8_t byte : first_word)
    if (cursor.at_end() || cursor.byte() != byte) cursor.refuse("another first word");
  return cursor;
}

std::string_view text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool begins_like_bytecode(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= first_word.size() && std::ranges::equal(first_word, bytes.first(first_word.size()));
}

Sections::Sections(std::span<const std::uint8_t> module, const Path& where)
    : rest_(behind_first_word(module, where)),
      version_(rest_.number()),
      producer_(text(rest_.text())),
      head_size_(rest_.place()) {
  // MLIR's bindings end the process where they quote one that is not.
  if (!is_utf8({reinterpret_cast<const std::uint8_t*>(producer_.data()), producer_.size()}))
    rest_.refuse("a producer that is not UTF-8");
}

void Sections::find() {
  while (!rest_.at_end()) {
    const auto [kind, section] = rest_.section();
    const bool known = kind < section_kinds;
    if (!known && version_ > newest_bytecode) continue;
    if (!known || sections_[kind]) rest_.refuse("a section of kind " + std::to_string(kind));
    sections_[kind] = section;
  }
}

const Cursor& Sections::needed(Section kind) const {
  const auto& section = (*this)[kind];
  if (!section) rest_.refuse("no section of kind " + std::to_string(static_cast<unsigned>(kind)));
  return *section;
}

// Reads the tables of names.

Names::Names(const Sections& sections) {
  read_strings(sections.needed(Section::strings));
  read_dialects(sections.needed(Section::dialects), sections.version());
}

void Names::read_strings(Cursor section) {
  std::vector<std::uint64_t> sizes(section.count("strings"));
  for (auto& size : sizes) size = section.number();
  strings.reserve(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const auto text = section.bytes(sizes[i]);
    if (text.empty() || text.back() != 0) section.refuse("a string that does not end with a zero");
    strings.emplace_back(reinterpret_cast<const char*>(text.data()), text.size() - 1);
  }
}

namespace {

/// Readers make a text of each kind of operation. Names may share their strings, so a few bytes could name very many.
class Budget {
 public:
  explicit Budget(const Cursor& section)
      : kinds_((1u << 12) + section.size_of_module() / 16), texts_((1u << 16) + 8 * section.size_of_module()) {}

  void spend(const Cursor& at, std::size_t text) {
    if (kinds_ == 0 || text > texts_) at.refuse("too many names of dialects and operations");
    --kinds_;
    texts_ -= text;
  }

 private:
  std::size_t kinds_, texts_;
};

}  // namespace

void Names::read_dialects(Cursor section, std::uint64_t version) {
  const bool may_be_versioned = version >= since::versioned_dialects, has_flags = version >= since::native_properties;
  Budget budget(section);
  for (std::uint64_t left = section.count("dialects"); left > 0; --left) {
    const std::uint64_t name = section.number();
    dialects.push_back(strings[string(section, may_be_versioned ? name >> 1 : name)]);
    budget.spend(section, dialects.back().size());
    constexpr auto dialect_versions = static_cast<unsigned>(Section::dialect_versions);
    if (may_be_versioned && (name & 1) && section.section().first != dialect_versions)
      section.refuse("no version of a dialect");
  }
  if (version >= since::counted_operations) section.count("operations");
  while (!section.at_end()) {
    const auto dialect = static_cast<std::uint32_t>(section.index(dialects.size(), "dialects"));
    for (std::uint64_t left = section.count("operations"); left > 0; --left) {
      const std::uint64_t name = section.number();
      operations.push_back({dialect, string(section, has_flags ? name >> 1 : name), has_flags && (name & 1)});
      budget.spend(section, dialects[dialect].size() + strings[operations.back().name].size());
    }
  }
}

// Entries have no places of their own: each begins where the one before it ends.

EntryTable::EntryTable(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects)
    : section_(entries), dialects_(dialects), attributes_(offsets.number()) {
  const std::uint64_t types = offsets.number();
  offsets.counted(attributes_, "attributes");
  offsets.counted(types, "types");
  section_.counted(attributes_ + types, "attributes and types");
  all_.reserve(attributes_ + types);
  add(offsets, attributes_);
  add(offsets, types);
}

void EntryTable::add(Cursor& offsets, std::uint64_t count) {
  while (count > 0) {
    const auto dialect = static_cast<std::uint32_t>(offsets.index(dialects_.size(), "dialects"));
    const std::uint64_t group = offsets.number();
    if (group == 0 || group > count)
      offsets.refuse("a group of " + std::to_string(group) + " entries where " + std::to_string(count) + " are left");
    for (std::uint64_t i = 0; i < group; ++i) {
      const std::uint64_t coded = offsets.number(), size = coded >> 1;
      if (size == 0) offsets.refuse("an attribute or type of no bytes");
      if (size > section_.left() - end_) offsets.refuse("an attribute or type beyond the end of its section");
      all_.push_back({static_cast<std::uint32_t>(end_), static_cast<std::uint32_t>(size), dialect, (coded & 1) != 0});
      end_ += size;
    }
    count -= group;
  }
}

// How attributes and types are encoded: by a number for their kind and the fields that this kind has. Sources:
// BuiltinDialectBytecode.td in LLVM, VhloBytecode.cpp in StableHLO; for Shardy, what it writes.

namespace {

// Far above what anything exported has, and what MLIR's recursive code still follows on the stack of a thread.
constexpr std::uint32_t max_depth = 256, max_location_depth = 4096;
constexpr std::uint64_t max_expanded = std::uint64_t{1} << 26;
constexpr std::uint64_t max_width = 1 << 16;
constexpr std::int64_t max_devices = 1 << 20;  // of a mesh: StableHLO lists them

/// Fields, a letter each: (A)ttribute, (T)ype, lists of them (a, t), of pairs of attributes (d), of signed numbers (i),
/// the same as a tensor's shape (x); an attribute that may be missing, marked in its number (O) or by one in front of
/// it (o); a (v)arint, the (W)idth of an integer, the si(z)e of a part of a mesh; a string's number (S), (B)ytes.
///
/// Others say what this is: a (L)ocation; a type of integers (I), (F)loating-point or (C)omplex numbers, truth values
/// (N), functions (U), to(K)ens, tu(P)les, buffers in (M)emory, futures (Q); the bounds of dynamic dimensions (D); a
/// mesh, or its name (Y). Or what is referred to first has to be: the type of an integer (n), of a float (f), of a
/// (c)onstant tensor; the bounds that (e)ncode something in a tensor's type; a (m)esh. What stands behind one of these
/// five, or behind a (*), is not read, but for what is on a mesh.
using Layout = const char*;
/// What no export has, such as quantized types, vectors and arrays of no known rank: some might contain themselves,
/// which the parser would follow for ever, and of others the parser believes what they are made of.
constexpr Layout refused = nullptr;

constexpr std::array<Layout, 23> builtin_attributes = {"a",  "d",  "S",   "ST",   "YA",  "Aa",  "T",   "",
                                                       "Tn", "Tf", "LAA", "LAvv", "La",  "LaA", "LAA", "L",
                                                       "T*", "T*", "TBc", "T*",   "TAA", "A",   "LA*"};
constexpr std::array<Layout, 21> builtin_types = {"IW",  "I", "tt",    "F",     "F",     "F",     "F",
                                                  "F",   "F", "TC",    refused, refused, "",      "xT",
                                                  "AxT", "t", refused, refused, refused, refused, refused};
constexpr std::array<Layout, 26> vhlo_attributes = {refused, "a",   "v",    "v",  "v",  "v",  "d",   "v", "Tf",
                                                    "Tn",    "ivi", "v",    "v",  "v",  "S",  "TBc", "v", "T",
                                                    "iD",    "v",   "vvvA", "zz", "Ao", "AA", "Az",  "AO"};
constexpr std::array<Layout, 43> vhlo_types = {
    "N",     "TC", "F", "F", "F", "F",  "F",    "F", "ttU", "I",     "I",     "I",     "I", "I", "I",
    "I",     "I",  "I", "I", "I", "xT", "AxTe", "K", "tP",  refused, refused, refused, "F", "F", "F",
    refused, "I",  "I", "",  "F", "F",  "F",    "F", "F",   "F",     "F",     "iTM",   "tQ"};
constexpr std::array<Layout, 18> shardy_attributes = {"a", "Sz",   "Yai", "zz", "SO", "a*", "mAaa*", "a", "i",
                                                      "a", "iaa*", "a",   "a",  "a*", "a",  "mAaaa", "a", "mAaaa*"};

/// How wide numbers are, by the number of their type; 0 for all other types.
constexpr std::array<std::uint8_t, 9> builtin_bits = {0, 64, 0, 16, 16, 32, 64, 80, 128};
constexpr std::array<std::uint8_t, 41> vhlo_bits = {1,  0, 16, 16, 32, 64, 8,  8, 0, 64, 4, 8, 16, 32,
                                                    64, 4, 8,  16, 32, 64, 0,  0, 0, 0,  0, 0, 0,  8,
                                                    8,  8, 0,  2,  2,  0,  19, 8, 8, 4,  6, 6, 8};

constexpr std::string_view vhlo = "vhlo";
constexpr unsigned vhlo_array = 1, vhlo_dictionary = 6, vhlo_string = 14, vhlo_tensor = 15;

/// What the parts of meshes in VHLO are, by the kind of what has them: StableHLO takes that for granted. Of an array,
/// `of_array` is what is in it. The second part may be missing.
struct Parts {
  unsigned kind, first, second, of_array = 0;
};
constexpr unsigned sub_axis = 21, axis_of_mesh = 24, axis_reference = 22;
constexpr Parts parts_of_meshes[] = {{axis_reference, vhlo_string, sub_axis},
                                     {23, vhlo_string, vhlo_array, axis_reference},
                                     {axis_of_mesh, vhlo_string, 0},
                                     {25, vhlo_array, vhlo_tensor, axis_of_mesh}};

Layout layout_at(std::span<const Layout> layouts, std::uint64_t kind) {
  return kind < layouts.size() ? layouts[kind] : refused;
}

std::int32_t number_at(std::span<const std::uint8_t> numbers, std::uint64_t kind) {
  return kind < numbers.size() ? numbers[kind] : 0;
}

/// Builtin types of numbers: integers, which have signs or not, and others; and VHLO's numbers of the same.
struct Like {
  std::uint64_t kind;
  std::int32_t bits;
  bool is_unsigned;
  unsigned vhlo;
};
constexpr std::uint64_t builtin_integer = 0, without_sign = 2;
constexpr Like likes[] = {
    {0, 1, false, 0},  {0, 2, false, 31},  {0, 2, true, 32},  {0, 4, false, 10},  {0, 4, true, 15},  {0, 8, false, 11},
    {0, 8, true, 16},  {0, 16, false, 12}, {0, 16, true, 17}, {0, 32, false, 13}, {0, 32, true, 18}, {0, 64, false, 14},
    {0, 64, true, 19}, {1, 64, false, 9},  {3, 16, false, 2}, {4, 16, false, 3},  {5, 32, false, 4}, {6, 64, false, 5}};

/// In memory, a number takes whole bytes.
std::int32_t in_bytes(std::int32_t bits) { return (bits + 7) / 8 * 8; }

}  // namespace

AttributesAndTypes::AttributesAndTypes(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects,
                                       std::span<const std::string_view> strings)
    : where_(entries),
      strings_(strings),
      are_names_(strings.size()),
      hashes_(strings.size()),
      entries_(entries, offsets, dialects),
      attributes_(entries_.attributes()) {
  nodes_.resize(entries_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    node.first_reference = static_cast<std::uint32_t>(references_.size());
    Cursor entry = entries_.data(i);
    const std::string_view dialect = entries_.dialect(i);
    // MLIR's parser of texts reads attributes of all dialects that jaxlib has, whatever that takes.
    if (!entries_.encoded(i)) entry.refuse("an attribute or type as text, which no export has");
    const bool is_type = i >= attributes_, is_builtin = dialect == "builtin", is_vhlo = dialect == vhlo;
    if (!is_builtin && !is_vhlo && (is_type || dialect != "sdy"))
      entry.refuse((is_type ? "a type of the dialect " : "an attribute of the dialect ") + escaped(shortened(dialect)) +
                   ", which no export has");
    const std::uint64_t kind = entry.number();
    if (!is_type && is_vhlo) node.kind = static_cast<std::uint8_t>(std::min<std::uint64_t>(kind, UINT8_MAX));
    if (is_type) node.bits = is_builtin ? number_at(builtin_bits, kind) : number_at(vhlo_bits, kind);
    const std::span<const Layout> layouts = is_type && is_builtin ? std::span<const Layout>(builtin_types)
                                            : is_type             ? std::span<const Layout>(vhlo_types)
                                            : is_builtin          ? std::span<const Layout>(builtin_attributes)
                                            : is_vhlo             ? std::span<const Layout>(vhlo_attributes)
                                                                  : std::span<const Layout>(shardy_attributes);
    const Layout layout = layout_at(layouts, kind);
    if (layout == refused)
      entry.refuse(std::string(is_type ? "a type" : "an attribute") + " of the kind " + std::to_string(kind) + " of " +
                   std::string(dialect) + ", which no export has");
    node.is = Class::other;
    read(node, entry, layout);
  }
  follow_references();
}

void AttributesAndTypes::read(Node& node, Cursor& entry, Layout layout) {
  const auto each = [&](const char* what, const auto& function) {
    for (std::uint64_t left = entry.count(what); left > 0; --left) function();
  };
  const auto attribute = [&] { refer(entry, false); };
  const auto type = [&] { refer(entry, true); };
  for (; *layout; ++layout) {
    switch (*layout) {
      case 'A': attribute(); break;
      case 'T': type(); break;
      case 'a': each("attributes", attribute); break;
      case 't': each("types", type); break;
      case 'd':
        node.is = Class::dictionary;
        each("pairs", [&] { attribute(), attribute(); });
        break;
      case 'i': each("numbers", [&] { entry.number(); }); break;
      case 'v': entry.number(); break;
      case 'z':
        node.elements = entry.signed_number();
        if (node.elements < 1 || node.elements > max_devices)
          entry.refuse("a part of a mesh of " + std::to_string(node.elements) + " devices");
        break;
      case 'O':
        if (const std::uint64_t coded = entry.number(); coded & 1)
          references_.push_back(static_cast<std::uint32_t>(entry.indexed(coded >> 1, attributes_, "attributes")));
        break;
      case 'o':
        if (entry.number() != 0) attribute();
        break;
      case 'S': node.string = static_cast<std::uint32_t>(entry.index(strings_.size(), "strings")); break;
      case 'B': node.bytes = static_cast<std::int64_t>(entry.bytes(entry.number()).size()); break;
      case 'L': node.is = Class::location; break;
      case 'I': node.is = Class::integer; break;
      case 'F': node.is = Class::floating; break;
      case 'C': node.is = Class::complex; break;
      case 'N': node.is = Class::truth; break;
      case 'U': node.is = Class::function; break;
      case 'n': node.needs = Class::integer; return;
      case 'f': node.needs = Class::floating; return;
      case 'c': node.needs = Class::tensor; return;
      case 'e': node.needs = Class::bounds; return;
      case 'D': node.is = Class::bounds; break;
      case 'Y': node.is = Class::mesh; break;
      case 'm': node.needs = Class::mesh; break;
      case 'K': node.is = Class::token; break;
      case 'P': node.is = Class::tuple; break;
      case 'Q': node.is = Class::future; break;
      case 'M': node.is = Class::buffer; break;
      case 'W':
        if (const std::uint64_t width = entry.number() >> 2; width > max_width)
          entry.refuse("an integer of " + std::to_string(width) + " bits");
        else
          node.bits = static_cast<std::int32_t>(width);
        break;
      case 'x': {
        node.is = Class::tensor;
        bool is_dynamic = false;
        node.elements = 1;
        node.rank = 0;
        node.first_size = static_cast<std::uint32_t>(sizes_.size());
        each("dimensions", [&] {
          ++node.rank;
          const std::int64_t size = sizes_.emplace_back(entry.signed_number());
          if (size == dynamic_size) return void(is_dynamic = true);
          if (size < 0 || (size > 0 && node.elements > max_elements / size))
            entry.refuse("a dimension of " + std::to_string(size) + " elements");
          node.elements *= size;
        });
        if (is_dynamic) node.elements = unknown;
        break;
      }
      default: return;
    }
  }
}

void AttributesAndTypes::refer(Cursor& entry, bool is_type) {
  const std::uint64_t index =
      is_type ? attributes_ + entry.index(types(), "types") : entry.index(attributes_, "attributes");
  references_.push_back(static_cast<std::uint32_t>(index));
}

std::span<const std::uint32_t> AttributesAndTypes::references_of(std::size_t at) const {
  const std::size_t end = at + 1 < nodes_.size() ? nodes_[at + 1].first_reference : references_.size();
  return std::span(references_).subspan(nodes_[at].first_reference, end - nodes_[at].first_reference);
}

std::int32_t AttributesAndTypes::integer_bits(std::uint64_t attribute) const {
  const Node* type = &nodes_[references_of(attribute).front()];
  if (type->is == Class::tensor) type = &nodes_[references_of(static_cast<std::size_t>(type - nodes_.data())).back()];
  return type->is == Class::integer || type->is == Class::truth ? type->bits : 0;
}

char AttributesAndTypes::value_kind(std::uint64_t type) const {
  switch (nodes_[attributes_ + type].is) {
    case Class::tensor: return 'x';
    case Class::token: return 'k';
    case Class::tuple: return 'p';
    case Class::future: return 'f';
    case Class::buffer: return 'm';
    default: return no_value;
  }
}

bool AttributesAndTypes::is_predicate(std::uint64_t type) const {
  return rank(type) == 0 && nodes_[references_of(attributes_ + type).back()].is == Class::truth;
}

bool AttributesAndTypes::holds_integers(std::uint64_t type) const {
  const Class is = nodes_[references_of(attributes_ + type).back()].is;
  return is == Class::integer || is == Class::truth;
}

bool AttributesAndTypes::holds_truth_values(std::uint64_t type) const {
  return nodes_[references_of(attributes_ + type).back()].is == Class::truth;
}

unsigned AttributesAndTypes::element(std::uint64_t type) const {
  std::size_t at = references_of(attributes_ + type).back();
  const bool is_complex = nodes_[at].is == Class::complex;
  if (is_complex) at = references_of(at).front();
  if (nodes_[at].bits <= 0) return unknown_element;
  Cursor data = entries_.data(at);
  const std::uint64_t kind = data.number();
  auto number = static_cast<unsigned>(kind);
  if (entries_.dialect(at) != vhlo) {
    const bool is_unsigned = kind == builtin_integer && (data.number() & 3) == without_sign;
    const auto* const like = std::ranges::find_if(likes, [&](const Like& one) {
      return one.kind == kind && one.bits == nodes_[at].bits && one.is_unsigned == is_unsigned;
    });
    if (like == std::end(likes)) return unknown_element;
    number = like->vhlo;
  }
  return is_complex ? number + complex_numbers : number;
}

AttributesAndTypes::Numbers AttributesAndTypes::numbers(std::uint64_t attribute) const {
  constexpr std::size_t size = sizeof(std::int64_t);
  const Node& type = nodes_[references_of(attribute).front()];
  Cursor data = entries_.data(attribute);
  data.number();  // its kind
  data.number();  // its type
  Numbers found{type.is == Class::tensor ? type.elements : 1, {}};
  if (integer_bits(attribute) != 8 * size) return found;
  if (type.is != Class::tensor) {
    found.listed.push_back(data.signed_number());
    return found;
  }
  const auto bytes = data.bytes(data.number());
  found.listed.resize(bytes.size() / size);
  for (std::size_t i = 0; i < found.listed.size() * size; ++i)
    found.listed[i / size] |= static_cast<std::int64_t>(std::uint64_t{bytes[i]} << 8 * (i % size));
  return found;
}

/// Depth first, without recursion.
void AttributesAndTypes::follow_references() {
  constexpr std::uint32_t open = UINT32_MAX;
  struct Place {
    std::size_t node, next;
  };
  std::vector<Place> path;
  for (std::size_t start = 0; start < nodes_.size(); ++start) {
    if (nodes_[start].depth == 0) path.push_back({start, 0});
    while (!path.empty()) {
      auto& [at, next] = path.back();
      nodes_[at].depth = open;
      const auto references = references_of(at);
      while (next < references.size() && nodes_[references[next]].depth != 0) {
        if (nodes_[references[next]].depth == open) where_.refuse("an attribute or type that contains itself");
        ++next;
      }
      if (next < references.size()) {
        path.push_back({references[next], 0});
      } else {
        finish(at);
        path.pop_back();
      }
    }
  }
}

/// What follows for a node from those that it refers to.
void AttributesAndTypes::finish(std::size_t at) {
  Node& node = nodes_[at];
  const auto references = references_of(at);
  std::uint32_t depth = 0;
  std::uint64_t expanded = 1;
  const bool is_vhlo = entries_.dialect(at) == vhlo;
  for (const std::uint32_t i : references) {
    if (is_vhlo && i >= attributes_ && entries_.dialect(i) != vhlo)
      where_.refuse("a type of another dialect than VHLO");
    if (is_vhlo && at < attributes_ && i < attributes_ && entries_.dialect(i) == "builtin" &&
        !(node.is == Class::dictionary && is_dense_array(i)))
      where_.refuse("an attribute of another dialect in one of VHLO");
    node.kind_of_parts = depth == 0 || nodes_[i].kind == node.kind_of_parts ? nodes_[i].kind : UINT8_MAX;
    depth = std::max(depth, nodes_[i].depth);  // which is at least 1
    // Locations share all of their callers, and no code copies them.
    if (node.is != Class::location) expanded += nodes_[i].expanded;
  }
  node.depth = depth + 1;
  if (node.depth > (node.is == Class::location ? max_location_depth : max_depth) || expanded > max_expanded)
    where_.refuse("attributes or types that nest too deeply");
  node.expanded = static_cast<std::uint32_t>(expanded);
  if (references.empty()) return;
  const Node& first = nodes_[references.front()];
  if (is_vhlo && at < attributes_) check_mesh(node, references);
  if (node.is == Class::mesh || (is_vhlo && node.kind_of_parts == axis_of_mesh)) check_axes(references);
  if (node.is == Class::location) check_name(first.string);
  if (node.is == Class::dictionary) check_names(references);
  const bool is_in_vhlo_integer = is_vhlo && at < attributes_ && node.needs == Class::integer;
  if ((node.needs != Class::unknown && first.is != Class::unknown && first.is != node.needs) ||
      (is_in_vhlo_integer && first.bits == 2))  // StableHLO's reader has no numbers of two bits
    where_.refuse("an attribute or type of another kind than its place takes");
  if (node.is == Class::complex) {
    if (first.is != Class::floating || (first.bits != 32 && first.bits != 64))
      where_.refuse("complex numbers of other parts than floating-point ones of 32 or 64 bits");
    node.bits = 2 * first.bits;
  }
  if (node.is == Class::tensor || node.is == Class::buffer) {
    const Node& element = nodes_[references.back()];
    const bool is_number = element.is == Class::integer || element.is == Class::floating ||
                           element.is == Class::complex || element.is == Class::truth;
    if (!is_number) where_.refuse("a tensor of other elements than numbers");
    node.bits = element.bits;
  }
  if (node.bytes != unknown && first.is == Class::tensor) check_data(node, first);
}

/// Such as the sizes of groups of operands, which JAX writes among the attributes of a composite.
bool AttributesAndTypes::is_dense_array(std::size_t builtin) const {
  constexpr std::uint64_t dense_array = 17;
  return entries_.data(builtin).number() == dense_array;
}

bool AttributesAndTypes::holds_dictionaries_alone(std::uint64_t attribute) const {
  return references_of(attribute).empty() || nodes_[attribute].kind_of_parts == vhlo_dictionary;
}

void AttributesAndTypes::check_mesh(const Node& node, std::span<const std::uint32_t> references) const {
  const auto* const parts = std::ranges::find(parts_of_meshes, node.kind, &Parts::kind);
  if (parts == std::end(parts_of_meshes)) return;
  for (std::size_t i = 0; i < references.size(); ++i) {
    const Node& part = nodes_[references[i]];
    const bool is_empty = references_of(references[i]).empty();
    if (part.kind != (i == 0 ? parts->first : parts->second) ||
        (part.kind == vhlo_array && !is_empty && part.kind_of_parts != parts->of_array))
      where_.refuse("a part of a mesh of another kind than its place takes");
  }
}

/// XLA multiplies the sizes, and divides by what comes of it.
void AttributesAndTypes::check_axes(std::span<const std::uint32_t> axes) const {
  std::int64_t devices = 1;
  for (const std::uint32_t axis : axes) {
    const std::int64_t size = std::max<std::int64_t>(nodes_[axis].elements, 1);
    if (size > max_devices / devices) where_.refuse("a mesh of more than " + std::to_string(max_devices) + " devices");
    devices *= size;
  }
}

/// jaxlib's bindings for Python end the process at some names that are no text: of attributes, of scopes, of files.
void AttributesAndTypes::check_name(std::uint32_t string) {
  if (string == no_string || are_names_[string]) return;
  const std::string_view name = strings_[string];
  if (!is_utf8({reinterpret_cast<const std::uint8_t*>(name.data()), name.size()}))
    where_.refuse("a name that is not UTF-8");
  are_names_[string] = true;
}

/// MLIR does not look for names that stand there twice, and finds one or the other.
void AttributesAndTypes::check_names(std::span<const std::uint32_t> dictionary) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < dictionary.size(); i += 2) {
    const std::uint32_t name = nodes_[dictionary[i]].string;
    if (name == no_string) where_.refuse("a dictionary with a name that is no string");
    check_name(name);
    hashes.push_back(hash(name));
  }
  std::ranges::sort(hashes);
  if (std::ranges::adjacent_find(hashes) != hashes.end()) where_.refuse("a dictionary with a name twice");
}

std::uint64_t AttributesAndTypes::hash(std::uint32_t string) {
  if (hashes_[string] == 0) hashes_[string] = SeededHash()(strings_[string]) | 1;
  return hashes_[string];
}

/// All elements of a constant are there, or one for all of them.
void AttributesAndTypes::check_data(const Node& node, const Node& type) const {
  if (type.elements == unknown) where_.refuse("a constant without a constant shape");
  if (type.bits <= 0) return;
  const std::int64_t one = in_bytes(type.bits) / 8;
  const bool packed = type.bits == 1 && node.bytes == (type.elements + 7) / 8;
  if (node.bytes != one && node.bytes != one * type.elements && !packed)
    where_.refuse("a constant of " + std::to_string(node.bytes) + " bytes for " + std::to_string(type.elements) +
                  " elements of " + std::to_string(type.bits) + " bits");
}

}  // namespace jaxexp::wire
