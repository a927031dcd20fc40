// Fuzz target: any bytes are MLIR bytecode as far as the check looks, or refused with one error that can be shown.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "target.h"
#include "wire/base/error.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/head.h"

namespace {

using namespace jaxexp;

/// What stands before a module's code, or what is wrong with it.
std::string head(std::span<const std::uint8_t> module) {
  try {
    const wire::Head head = wire::read_head(module, {nullptr, "module"});
    const auto names = wire::bytes_of_names(module);
    tests::require(names.size() < module.size(), "names are a part of the module");
    return std::string(head.producer) + '|' + std::to_string(head.operations.size()) + '|' +
           std::to_string(head.attributes.size() + head.types.size());
  } catch (const wire::Error& error) {
    return error.expected + '|' + error.found;
  }
}

/// What is in a module, or what the check says of it.
std::string verdict(std::span<const std::uint8_t> module) {
  try {
    const auto contents = wire::read_contents(module, {nullptr, "module"});
    if (!contents) return "another version";
    std::string counted;
    std::uint64_t operations = 0, calls = 0;
    for (const auto& [name, count] : contents->operations) counted += name + std::to_string(count), operations += count;
    if (contents->custom_calls)
      for (const auto& [name, count] : *contents->custom_calls) counted += std::to_string(count), calls += count;
    tests::require(calls <= operations && operations <= module.size(), "operations take bytes, and calls are some");
    const auto kinds = wire::read_head(module, {nullptr, "module"}).operations;
    const std::set<std::string> named(kinds.begin(), kinds.end());
    for (const auto& [name, count] : contents->operations) tests::require(named.contains(name), "the head names it");
    const auto inventory = wire::read_inventory(module, {nullptr, "module"});
    tests::require(inventory && inventory->operations == contents->operations, "an inventory has all operations");
    tests::require(!contents->custom_calls || !inventory->custom_calls ||
                       inventory->custom_calls->size() == contents->custom_calls->size(),
                   "and all targets");
    for (const std::string_view name : inventory->attributes) counted += name;
    return counted;
  } catch (const wire::Error& error) {
    for (const std::string& text : {error.path, error.expected, error.found})
      tests::require(!text.empty() && text.size() < 1000 && tests::is_utf8(text), "an error's texts can be shown");
    return error.path + "|" + error.expected + "|" + error.found;
  }
}

/// A module that passes the check still does so, and has the same in it, when its locations name other files.
void hide_some_sources(std::span<const std::uint8_t> module) {
  const wire::Path where{nullptr, "module"};
  const auto is_there = [](std::string_view name) { return name.size() % 2 == 0; };
  std::optional<wire::Contents> contents;
  std::optional<std::vector<std::uint8_t>> changed;
  try {
    contents = wire::read_contents(module, where);
    changed = wire::without_sources(module, where, is_there);
  } catch (const wire::Error&) {
    return;
  }
  if (!contents || !changed) return;
  tests::require(changed->size() == module.size(), "each location keeps its size");
  tests::require(!wire::without_sources(*changed, where, is_there), "no file is named that is there");
  const auto after = wire::read_contents(*changed, where);
  tests::require(after && after->operations == contents->operations && after->custom_calls == contents->custom_calls,
                 "the code is the same");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tests::require(verdict({data, size}) == verdict({data, size}), "a second look finds the same");
  tests::require(head({data, size}) == head({data, size}), "the same of the head");
  hide_some_sources({data, size});
  tests::require(!wire::producer_of({data, size}) || wire::begins_like_bytecode({data, size}),
                 "bytecode has producers");
  return 0;
}
