// The order of the checks: digests, structure, meaning, and whether trailer and artifact fit.
#include "opened.h"

#include "check.h"
#include "verify.h"

namespace jaxexp::wire {

Opened::Opened(std::span<const std::uint8_t> buffer) : trailer_(Trailer::read(buffer)) {
  const auto artifact = trailer_ ? trailer_->artifact() : buffer;
  root_ = &verify(artifact);
  check(*root_, artifact.size());
  if (trailer_) trailer_->check(*root_);
}

void Opened::check_module(const schema::Exported& exported, std::size_t order) const {
  if (is_module_checked(order)) return;
  trailer_->check_module(exported, order);
  checked_modules_ |= bit(order);
}

}  // namespace jaxexp::wire
