// What runs custom calls: functions of ours that a plugin calls.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "runtime/plugin/client.h"

struct XLA_FFI_CallFrame;  // of xla/ffi/api/c_api.h
struct XLA_FFI_Error;

namespace jaxexp::runtime {

/// For calls in the typed form of XLA's FFI.
using Handler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

struct NamedHandler {
  std::string_view target;  // of custom calls
  Handler* handler;
};

bool takes_handlers(const Client& client);

/// Whether a plugin has a handler for a target from `give_handlers`.
bool has_given_handler(const Client& client, std::string_view target);

/// Gives a plugin handlers. It keeps them while the process lives, for all clients. Those that it has already are left
/// out. Plugins may refuse a handler without a word and miss it later, so a small module is compiled that calls all of
/// them, under other names first. Throws RunError where the plugin takes none, finds one of them not, or has another
/// one from here; then it has none of the new ones.
void give_handlers(const std::shared_ptr<const Client>& client, std::span<const NamedHandler> handlers);

}  // namespace jaxexp::runtime
