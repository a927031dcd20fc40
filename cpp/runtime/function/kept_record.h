// Records of a file of executables, compared with what is here, and what a call needs of them.
#pragma once

#include <string>
#include <string_view>

#include "runtime/plugin/hlo_shardings.h"
#include "wire/compiled/records.h"

namespace jaxexp::runtime {

/// Null where there is no such entry.
const std::string* value_of(const wire::Entries& entries, std::string_view name);

/// In what a record differs from what is here; empty where it does not.
std::string difference(const wire::Entries& record, const wire::Entries& here);

/// What a call on several devices needs, as a record has it.
wire::Entries call_entries(const HloShardings& shardings);
HloShardings shardings_in(const wire::Entries& call);

}  // namespace jaxexp::runtime
