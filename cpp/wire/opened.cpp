// The order of the checks: digests, structure, meaning, and whether trailer and artifact fit.
#include "opened.h"

#include <utility>

#include "check.h"

namespace jaxexp::wire {

Opened::Opened(std::span<const std::uint8_t> buffer, std::optional<Trailer> trailer) : trailer_(std::move(trailer)) {
  const auto artifact = trailer_ ? trailer_->artifact() : buffer;
  root_ = &verify(artifact, tables_);
  check(*root_, artifact.size());
  if (trailer_) trailer_->check(*root_);
}

Opened::Opened(const Trailer& trailer, const schema::Exported& root) : trailer_(trailer), root_(&root) {
  trailer.check(root);
}

void Opened::check_module(const schema::Exported& exported, std::size_t order) const {
  if (is_module_checked(order)) return;
  trailer_->check_module(exported, order);
  checked_modules_ |= bit(order);
}

}  // namespace jaxexp::wire
