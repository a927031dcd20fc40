#include "wire/bytecode/values.h"

#include <algorithm>

namespace jaxexp::wire {

bool Values::fit(std::string_view pattern, std::span<const std::uint32_t> types) {
  const auto has = [&](char sign) { return static_cast<std::size_t>(std::ranges::count(pattern, sign)); };
  const std::size_t any = has('*'), equal = has('+') + has('#'), single = pattern.size() - 2 * (any + equal);
  if (types.size() < single || (any + equal == 0 && types.size() > single)) return false;
  const std::size_t more = types.size() - single;
  if (equal > 0) {
    const std::size_t each = more / equal;
    if (more % equal != 0 || each != count_.value_or(each) || (each == 0 && has('+') > 0)) return false;
    count_ = each;
  }
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char letter = pattern[i], sign = i + 1 < pattern.size() ? pattern[i + 1] : ' ';
    const bool is_equal = sign == '+' || sign == '#', is_group = is_equal || sign == '*';
    if (is_group) ++i;
    const auto group = types.first(is_equal ? *count_ : is_group ? more : 1);
    types = types.subspan(group.size());
    if (!std::ranges::all_of(group, [&](std::uint32_t type) { return fits(letter, type); })) return false;
    if (!is_equal || letter != 'v') continue;
    if (kinds_.empty())
      for (const std::uint32_t type : group) kinds_.push_back(tables_->value_kind(type));
    else if (!std::ranges::equal(group, kinds_, {}, [&](std::uint32_t type) { return tables_->value_kind(type); }))
      return false;
  }
  return true;
}

bool Values::fits(char letter, std::uint32_t type) const {
  const char kind = tables_->value_kind(type);
  if (letter == 'i') return kind == 'x' && tables_->is_predicate(type);
  return letter == 'v' ? kind != AttributesAndTypes::no_value : kind == letter;
}

}  // namespace jaxexp::wire
