// Reads the tables of names.
#include "wire/bytecode/names.h"

namespace jaxexp::wire {

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

}  // namespace jaxexp::wire
