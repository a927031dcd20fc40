// An extension of the C API has it: https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_stream_extension.h.
#include <cstddef>
#include <cstdint>

#include "runtime/plugin/client.h"

namespace jaxexp::runtime {
namespace {

/// Plugins of other versions, whose struct has other members, say that its size does not fit.
struct PJRT_Get_Stream_For_External_Ready_Events_Args {
  std::size_t struct_size;
  PJRT_Device* device;
  std::intptr_t stream;  // out
};
constexpr std::size_t PJRT_Get_Stream_For_External_Ready_Events_Args_STRUCT_SIZE =
    sizeof(PJRT_Get_Stream_For_External_Ready_Events_Args);

struct Extension {
  PJRT_Extension_Base base;
  PJRT_Error* (*get_stream)(PJRT_Get_Stream_For_External_Ready_Events_Args*);
};

}  // namespace

std::intptr_t Client::stream(const Device& device) const {
  const auto* const found = api_.extension(PJRT_Extension_Type_Stream);
  if (!found || found->struct_size < sizeof(Extension)) return 0;
  auto arguments = JAXEXP_PJRT_STRUCT(PJRT_Get_Stream_For_External_Ready_Events_Args, .device = device.device);
  api_.check(reinterpret_cast<const Extension*>(found)->get_stream(&arguments), "say which stream others may use");
  return arguments.stream;
}

}  // namespace jaxexp::runtime
