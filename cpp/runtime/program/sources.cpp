// XLA shows the line of the source where something is wrong, and opens whatever file a location names: one with a
// secret, or one that never ends.
#include <filesystem>
#include <system_error>

#include "runtime/program/program.h"
#include "wire/api/translating.h"
#include "wire/bytecode/head.h"

namespace jaxexp::runtime {

std::optional<std::vector<std::uint8_t>> without_sources(std::span<const std::uint8_t> module) {
  std::optional<std::vector<std::uint8_t>> changed;
  const auto files = translating([&] { return wire::source_files(module, {nullptr, "mlir_module_serialized"}); });
  for (const std::string_view name : files) {
    std::error_code ignored;
    if (name.empty() || status(std::filesystem::path(name), ignored).type() == std::filesystem::file_type::not_found)
      continue;
    if (!changed) changed.emplace(module.begin(), module.end());
    (*changed)[static_cast<std::size_t>(reinterpret_cast<const std::uint8_t*>(name.data()) - module.data())] = 0;
  }
  return changed;
}

}  // namespace jaxexp::runtime
