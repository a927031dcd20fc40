#include "wire/bytecode/bytecode.h"

#include <set>

#include "wire/bytecode/module.h"

namespace jaxexp::wire {

void check_bytecode(std::span<const std::uint8_t> module, const Path& where) { Module<>(module, where).check(); }

std::optional<Contents> read_contents(std::span<const std::uint8_t> module, const Path& where) {
  Module<> read(module, where);
  if (!read.check()) return std::nullopt;
  return read.contents();
}

std::optional<std::vector<std::uint8_t>> with_typed_calls(std::span<const std::uint8_t> module, const Path& where,
                                                          const std::function<bool(std::string_view)>& is_changed) {
  Module<> read(module, where);
  if (!read.check()) return std::nullopt;
  const auto places = read.untyped(is_changed);
  if (!places || places->empty()) return std::nullopt;
  std::vector<std::uint8_t> changed(module.begin(), module.end());
  for (const std::uint8_t* const place : *places) changed[static_cast<std::size_t>(place - module.data())] = typed_call;
  return changed;
}

}  // namespace jaxexp::wire
