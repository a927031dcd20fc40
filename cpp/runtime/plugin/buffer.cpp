// What a plugin is asked of an array.
#include "runtime/plugin/buffer.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>

namespace jaxexp::runtime {
namespace {

constexpr std::string_view computing = "compute an array";

bool is_row_major(const PJRT_Buffer_MemoryLayout& layout, std::span<const std::int64_t> shape, std::size_t bytes) {
  if (layout.type == PJRT_Buffer_MemoryLayout_Type_Tiled) {
    const std::span minor_to_major(layout.tiled.minor_to_major, layout.tiled.minor_to_major_size);
    return layout.tiled.num_tiles == 0 && std::ranges::is_sorted(minor_to_major, std::greater<>());
  }
  const std::span strides(layout.strides.byte_strides, layout.strides.num_byte_strides);
  auto stride = static_cast<std::int64_t>(bytes);
  for (std::size_t d = strides.size(); d-- > 0; stride *= shape[d])
    if (strides[d] != stride) return false;
  return true;
}

}  // namespace

std::shared_ptr<const Buffer> Buffer::from_host(const std::shared_ptr<const Client>& client, const Source& source,
                                                const Device& device, PJRT_Memory* memory) {
  const auto semantics =
      source.owner ? PJRT_HostBufferSemantics_kImmutableZeroCopy : PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  const auto made = JAXEXP_PJRT_CALL(client->api(), PJRT_Client_BufferFromHostBuffer, "take an array",
                                     .client = client->get(), .data = source.data, .type = source.type->type,
                                     .dims = source.shape.data(), .num_dims = source.shape.size(),
                                     .byte_strides = source.strides.data(), .num_byte_strides = source.strides.size(),
                                     .host_buffer_semantics = semantics, .device = device.device, .memory = memory);
  auto buffer = std::make_shared<const Buffer>(client, made.buffer);
  // The owner lives until the plugin is done with its memory, which may be when the buffer goes.
  client->api().when_ready(made.done_with_host_buffer, "take an array", [owner = source.owner](const RunError*) {});
  return buffer;
}

std::shared_ptr<const Buffer> Buffer::on_device(const std::shared_ptr<const Client>& client, const Foreign& foreign,
                                                const Device& device) {
  const Api& api = client->api();
  PJRT_Memory* const memory =
      api.has(&PJRT_Api::PJRT_Device_DefaultMemory)
          ? JAXEXP_PJRT_CALL(api, PJRT_Device_DefaultMemory, "say what memory a device has", .device = device.device)
                .memory
          : nullptr;
  const auto made = JAXEXP_PJRT_CALL(
      api, PJRT_Client_CreateViewOfDeviceBuffer, "use an array of another library", .client = client->get(),
      .device_buffer_ptr = foreign.data, .dims = foreign.shape.data(), .num_dims = foreign.shape.size(),
      .element_type = foreign.type->type, .device = device.device, .on_delete_callback = foreign.release,
      .on_delete_callback_arg = foreign.owner, .stream = client->stream(device), .memory = memory);
  return std::make_shared<const Buffer>(client, made.buffer);
}

PJRT_Buffer_Type Buffer::type() const {
  return JAXEXP_PJRT_CALL(api(), PJRT_Buffer_ElementType, "say the dtype of an array", .buffer = get()).type;
}

std::vector<std::int64_t> Buffer::shape() const {
  const auto said = JAXEXP_PJRT_CALL(api(), PJRT_Buffer_Dimensions, "say the shape of an array", .buffer = get());
  return {said.dims, said.dims + said.num_dims};
}

PJRT_Device* Buffer::find_device() const {
  return device_ = JAXEXP_PJRT_CALL(api(), PJRT_Buffer_Device, "say where an array is", .buffer = get()).device;
}

bool Buffer::is_deleted() const {
  constexpr std::string_view task = "say whether an array is still there";
  return JAXEXP_PJRT_CALL(api(), PJRT_Buffer_IsDeleted, task, .buffer = get()).is_deleted;
}

PJRT_Event* Buffer::ready_event() const {
  return JAXEXP_PJRT_CALL(api(), PJRT_Buffer_ReadyEvent, "say when an array is there", .buffer = get()).event;
}

void Buffer::wait() const {
  if (ready_)
    JAXEXP_PJRT_CALL(api(), PJRT_Event_Await, computing, .event = ready_.get());
  else
    api().wait(ready_event(), computing);
}

bool Buffer::is_ready() const { return ready_ || api().is_ready(Owned<PJRT_Event>(ready_event(), {api()}).get()); }

bool Buffer::knows_ready() {
  Owned<PJRT_Event> event(ready_event(), {api()});
  if (!api().is_ready(event.get())) return false;
  ready_ = std::move(event);
  return true;
}

void Buffer::when_ready(std::function<void(const RunError*)> done) const {
  const PluginCall call;  // exit() waits until `done` has run
  api().when_ready(ready_event(), computing, [call, done = std::move(done)](const RunError* error) { done(error); });
}

void Buffer::copy_to(void* target, std::size_t size) const {
  std::vector<std::int64_t> minor_to_major(shape().size());
  std::iota(minor_to_major.rbegin(), minor_to_major.rend(), std::int64_t{0});
  auto row_major = JAXEXP_PJRT_STRUCT(PJRT_Buffer_MemoryLayout, .type = PJRT_Buffer_MemoryLayout_Type_Tiled);
  row_major.tiled = JAXEXP_PJRT_STRUCT(PJRT_Buffer_MemoryLayout_Tiled, .minor_to_major = minor_to_major.data(),
                                       .minor_to_major_size = minor_to_major.size());
  const auto copy = JAXEXP_PJRT_CALL(api(), PJRT_Buffer_ToHostBuffer, "copy an array to the host", .src = get(),
                                     .host_layout = &row_major, .dst = target, .dst_size = size);
  api().wait(copy.event, "compute an array or copy it to the host");
}

bool Buffer::is_on_host(const ElementType& type, std::span<const std::int64_t> shape) const {
  if (!api().has(&PJRT_Api::PJRT_Buffer_IsOnCpu)) return false;
  const bool is_on_cpu =
      JAXEXP_PJRT_CALL(api(), PJRT_Buffer_IsOnCpu, "say which memory an array is in", .buffer = get()).is_on_cpu;
  return is_on_cpu && lies_as_on_host(type, shape);
}

bool Buffer::lies_as_on_host(const ElementType& type, std::span<const std::int64_t> shape) const {
  if (type.is_part_of_a_byte || !api().has(&PJRT_Api::PJRT_Buffer_UnsafePointer)) return false;
  try {
    const auto said = JAXEXP_PJRT_CALL(api(), PJRT_Buffer_GetMemoryLayout, "say how an array lies", .buffer = get());
    return is_row_major(said.layout, shape, type.bytes);
  } catch (const RunError&) {  // which `copy_to` may be able to do without
    return false;
  }
}

const void* Buffer::data() const {
  wait();
  const auto said = JAXEXP_PJRT_CALL(api(), PJRT_Buffer_UnsafePointer, "say where an array is", .buffer = get());
  return reinterpret_cast<const void*>(said.buffer_pointer);
}

// An extension of the C API has it: https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_stream_extension.h.

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
