// What a plugin is asked of an array.
#include "runtime/plugin/buffer.h"

#include <numeric>
#include <string_view>

namespace jaxexp::runtime {

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
  client->api().when_ready(made.done_with_host_buffer, [owner = source.owner] {});
  return buffer;
}

PJRT_Buffer_Type Buffer::type() const {
  return JAXEXP_PJRT_CALL(api(), PJRT_Buffer_ElementType, "say the dtype of an array", .buffer = get()).type;
}

std::vector<std::int64_t> Buffer::shape() const {
  const auto said = JAXEXP_PJRT_CALL(api(), PJRT_Buffer_Dimensions, "say the shape of an array", .buffer = get());
  return {said.dims, said.dims + said.num_dims};
}

PJRT_Device* Buffer::device() const {
  return JAXEXP_PJRT_CALL(api(), PJRT_Buffer_Device, "say where an array is", .buffer = get()).device;
}

bool Buffer::is_deleted() const {
  constexpr std::string_view task = "say whether an array is still there";
  return JAXEXP_PJRT_CALL(api(), PJRT_Buffer_IsDeleted, task, .buffer = get()).is_deleted;
}

void Buffer::wait() const {
  const auto ready = JAXEXP_PJRT_CALL(api(), PJRT_Buffer_ReadyEvent, "say when an array is there", .buffer = get());
  api().wait(ready.event, "compute an array");
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

}  // namespace jaxexp::runtime
