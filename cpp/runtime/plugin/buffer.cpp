// Buffers hold their client, which has to outlive them.
#include "runtime/plugin/buffer.h"

#include <utility>

namespace jaxexp::runtime {

Buffer::Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* buffer)
    : client_(std::move(client)), buffer_(buffer) {}

Buffer::~Buffer() {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_Destroy_Args, arguments);
  arguments.buffer = buffer_;
  client_->api().call_silently(&PJRT_Api::PJRT_Buffer_Destroy, arguments);
}

std::shared_ptr<const Buffer> Buffer::from_host(const std::shared_ptr<const Client>& client, const Source& source,
                                                const Device& device, PJRT_Memory* memory) {
  const Api& api = client->api();
  JAXEXP_PJRT_ARGUMENTS(PJRT_Client_BufferFromHostBuffer_Args, arguments);
  arguments.client = client->get();
  arguments.data = source.data;
  arguments.type = source.type->type;
  arguments.dims = source.shape.data();
  arguments.num_dims = source.shape.size();
  arguments.byte_strides = source.strides.data();
  arguments.num_byte_strides = source.strides.size();
  arguments.host_buffer_semantics =
      source.owner ? PJRT_HostBufferSemantics_kImmutableZeroCopy : PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  arguments.device = device.device;
  arguments.memory = memory;
  api.call(&PJRT_Api::PJRT_Client_BufferFromHostBuffer, arguments, "take an array");
  auto buffer = std::make_shared<const Buffer>(client, arguments.buffer);
  // The owner lives until the plugin is done with its memory, which may be when the buffer goes.
  api.when_ready(arguments.done_with_host_buffer, [owner = source.owner] {});
  return buffer;
}

PJRT_Buffer_Type Buffer::type() const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_ElementType_Args, arguments);
  arguments.buffer = buffer_;
  client_->api().call(&PJRT_Api::PJRT_Buffer_ElementType, arguments, "say the dtype of an array");
  return arguments.type;
}

std::vector<std::int64_t> Buffer::shape() const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_Dimensions_Args, arguments);
  arguments.buffer = buffer_;
  client_->api().call(&PJRT_Api::PJRT_Buffer_Dimensions, arguments, "say the shape of an array");
  return {arguments.dims, arguments.dims + arguments.num_dims};
}

PJRT_Device* Buffer::device() const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_Device_Args, arguments);
  arguments.buffer = buffer_;
  client_->api().call(&PJRT_Api::PJRT_Buffer_Device, arguments, "say where an array is");
  return arguments.device;
}

bool Buffer::is_deleted() const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_IsDeleted_Args, arguments);
  arguments.buffer = buffer_;
  client_->api().call(&PJRT_Api::PJRT_Buffer_IsDeleted, arguments, "say whether an array is still there");
  return arguments.is_deleted;
}

void Buffer::wait() const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_ReadyEvent_Args, arguments);
  arguments.buffer = buffer_;
  client_->api().call(&PJRT_Api::PJRT_Buffer_ReadyEvent, arguments, "say when an array is there");
  client_->api().wait(arguments.event, "compute an array");
}

void Buffer::copy_to(void* target, std::size_t size) const {
  const std::size_t rank = shape().size();
  std::vector<std::int64_t> minor_to_major;
  for (std::size_t i = rank; i-- > 0;) minor_to_major.push_back(static_cast<std::int64_t>(i));
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_MemoryLayout, row_major);
  row_major.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  row_major.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  row_major.tiled.minor_to_major = minor_to_major.data();
  row_major.tiled.minor_to_major_size = rank;
  JAXEXP_PJRT_ARGUMENTS(PJRT_Buffer_ToHostBuffer_Args, arguments);
  arguments.src = buffer_;
  arguments.host_layout = &row_major;
  arguments.dst = target;
  arguments.dst_size = size;
  client_->api().call(&PJRT_Api::PJRT_Buffer_ToHostBuffer, arguments, "copy an array to the host");
  client_->api().wait(arguments.event, "compute an array or copy it to the host");
}

}  // namespace jaxexp::runtime
