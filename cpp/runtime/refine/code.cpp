// Values are numbered by scopes in bytecode, and over the whole module in memory. The order in which a value is used
// is not kept: it means nothing.
#include "runtime/refine/code.h"

#include <climits>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/refine/shape.h"
#include "runtime/refine/tables.h"

namespace jaxexp::runtime::refine {
namespace {

namespace since = wire::since;

// What an operation has, as bits.
constexpr unsigned has_attributes = 1, has_results = 2, has_operands = 4, has_successors = 8, has_regions = 16,
                   has_use_lists = 32, has_properties = 64;

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

}  // namespace jaxexp::runtime::refine
