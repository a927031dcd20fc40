// The order of the checks: digests, structure, meaning, and whether trailer and artifact fit.
#include "wire/artifact/opened.h"

#include <utility>

#include "wire/base/error.h"
#include "wire/exported/check.h"

namespace jaxexp::wire {
namespace {

/// Of modules that lie apart, the sizes; a digest is compared when the module is used.
void check_sizes(const Trailer& trailer, std::span<const Opened::Bytes> modules) {
  const std::size_t functions = trailer.content().functions()->size();
  if (modules.size() != functions)
    throw Error({nullptr, "modules"}, std::to_string(functions) + " modules for as many functions",
                std::to_string(modules.size()));
  for (std::size_t order = 0; order < functions; ++order)
    if (modules[order].size() != trailer.notes(order).module_size())
      throw Error({nullptr, "modules", static_cast<std::int64_t>(order)},
                  "a module of " + std::to_string(trailer.notes(order).module_size()) + " bytes",
                  "one of " + std::to_string(modules[order].size()));
}

}  // namespace

Opened::Opened(Bytes buffer, std::span<const Bytes> modules, std::optional<Trailer> trailer)
    : trailer_(std::move(trailer)), modules_(modules.begin(), modules.end()) {
  if (!modules.empty() && !trailer_)
    throw Error({}, "an artifact whose modules are stored apart",
                std::to_string(buffer.size()) + " bytes that do not begin like one");
  const auto artifact = trailer_ ? trailer_->artifact() : buffer;
  root_ = &verify(artifact, tables_);
  check(*root_, artifact.size());
  if (trailer_) trailer_->check(*root_);
  if (!modules.empty()) check_sizes(*trailer_, modules);
}

Opened::Opened(const Trailer& trailer, const schema::Exported& root, std::span<const Bytes> modules)
    : trailer_(trailer), modules_(modules.begin(), modules.end()), root_(&root) {
  trailer.check(root);
  if (!modules.empty()) check_sizes(trailer, modules);
}

void Opened::check_module(const schema::Exported& exported, std::size_t order) const {
  if (is_module_checked(order)) return;
  trailer_->check_module(digest(module(exported, order)), order);
  checked_modules_ |= bit(order);
}

}  // namespace jaxexp::wire
