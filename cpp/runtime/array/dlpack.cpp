// https://dmlc.github.io/dlpack/latest/c_api.html
#include "runtime/array/dlpack.h"

#include <cstring>
#include <optional>
#include <string>

namespace jaxexp::runtime {
namespace {

using Reason = RunError::Reason;

const ElementType* type_of(const DLDataType& dtype) {
  const ElementType* const found = dtype.lanes == 1 ? element_type(dtype.code, dtype.bits) : nullptr;
  if (!found)
    throw RunError(Reason::unsupported, "there are no arrays of DLPack's dtype with code " +
                                            std::to_string(dtype.code) + ", " + std::to_string(dtype.bits) +
                                            " bits and " + std::to_string(dtype.lanes) + " lanes");
  return found;
}

/// Copies numbers that lie with `strides`, in numbers, row by row.
void gather(const DLTensor& tensor, const std::byte* from, std::size_t bytes, std::byte* to) {
  const auto rank = static_cast<std::size_t>(tensor.ndim);
  Shape at(rank, 0);
  for (std::size_t left = count({tensor.shape, tensor.shape + rank}); left > 0; --left, to += bytes) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank; ++d) offset += at[d] * tensor.strides[d];
    std::memcpy(to, from + offset * static_cast<std::int64_t>(bytes), bytes);
    for (std::size_t d = rank; d-- > 0 && ++at[d] == tensor.shape[d];) at[d] = 0;
  }
}

DLDevice device_of(const Client& client, PJRT_Device* device) {
  const std::string& platform = client.platform();
  if (platform != "cuda" && platform != "rocm") return {kDLCPU, 0};
  const auto number = JAXEXP_PJRT_CALL(client.api(), PJRT_Device_LocalHardwareId, "number a device", .device = device);
  return {platform == "cuda" ? kDLCUDA : kDLROCM, number.local_hardware_id};
}

bool is_row_major(const DLTensor& tensor) {
  if (!tensor.strides) return true;
  std::int64_t stride = 1;
  for (auto d = static_cast<std::size_t>(tensor.ndim); d-- > 0; stride *= tensor.shape[d])
    if (tensor.shape[d] != 1 && tensor.strides[d] != stride) return false;
  return true;
}

template <class Tensor>
void give_back(Tensor* tensor) {
  if (tensor->deleter) tensor->deleter(tensor);
}

/// Gives the tensor back in the end.
template <class Tensor>
std::shared_ptr<const void> owner_of(Tensor* tensor) {
  // An owner of nothing first: if there is no memory for it, the tensor is still the caller's.
  struct Owner {
    Tensor* tensor = nullptr;
    ~Owner() {
      if (tensor) give_back(tensor);
    }
  };
  auto owner = std::make_shared<Owner>();
  owner->tensor = tensor;
  return owner;
}

bool is_on_host(const DLDevice& device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost || device.device_type == kDLROCMHost;
}

template <class Tensor>
Numbers taken(const std::shared_ptr<const Client>& client, Tensor* managed, bool is_padded) {
  const DLTensor& tensor = managed->dl_tensor;
  const Device* const device = is_on_host(tensor.device) ? nullptr : &device_of(client.get(), tensor.device);
  if (tensor.ndim < 0 || (tensor.ndim > 0 && !tensor.shape))
    throw RunError(Reason::argument, "the DLPack tensor has no shape");
  const ElementType* const type = type_of(tensor.dtype);
  if (type->is_part_of_a_byte && !is_padded)
    throw RunError(Reason::unsupported, "a DLPack tensor of " + std::string(type->name) +
                                            " has to have a byte for each number (the flag "
                                            "IS_SUBBYTE_TYPE_PADDED), and this one has not");
  Numbers numbers{type, {tensor.shape, tensor.shape + tensor.ndim}, nullptr, nullptr, {}};
  const std::size_t size = size_bytes(numbers);
  if (size > 0 && !tensor.data)
    throw RunError(Reason::argument, "the numbers of the DLPack tensor are at a null pointer");
  auto* const first = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (device) {
    if (size > 0 && !is_row_major(tensor))
      throw RunError(Reason::unsupported,
                     "a DLPack tensor on a device has to be row-major without gaps, and this one is not: make a "
                     "contiguous copy of it");
    const auto release = [](void*, void* owner) { give_back(static_cast<Tensor*>(owner)); };
    numbers.parts.push_back(
        {std::nullopt, Buffer::on_device(client, {type, numbers.shape, first, release, managed}, *device)});
    numbers.is_lent = true;
    return numbers;
  }
  if (size == 0 || is_row_major(tensor)) {
    numbers.data = first;
    numbers.owner = owner_of(managed);
    return numbers;
  }
  const auto copy = std::shared_ptr<std::byte[]>(new std::byte[size]);
  gather(tensor, first, type->bytes, copy.get());
  numbers.data = copy.get();
  numbers.owner = copy;
  static_cast<void>(owner_of(managed));  // which is not needed any more
  return numbers;
}

/// What a tensor that is given away needs until its deleter is called.
template <class Tensor>
struct Given {
  Tensor tensor = {};
  std::shared_ptr<const Numbers> numbers;
  std::optional<Pin> pin;
  Shape shape, strides;
};

/// Whether the memory of this device is what DLPack means by the device, and has the numbers as they lie in host
/// memory.
bool is_shared(const Numbers& numbers) {
  if (numbers.parts.empty()) return false;
  const Part& first = numbers.parts.front();
  return !first.block && device_of(*first.buffer->client(), first.buffer->device()).device_type != kDLCPU &&
         first.buffer->lies_as_on_host(*numbers.type, numbers.shape);
}

template <class Tensor>
Given<Tensor>* given(const std::shared_ptr<const Numbers>& numbers) {
  auto given = std::make_unique<Given<Tensor>>();
  given->numbers = numbers;
  given->shape = numbers->shape;
  given->strides = row_major_strides(numbers->shape, 1);
  DLTensor& tensor = given->tensor.dl_tensor;
  tensor.device = {kDLCPU, 0};
  const void* data = nullptr;
  if (!buffer_on_host(*numbers) && is_shared(*numbers)) {
    const auto& buffer = numbers->parts.front().buffer;
    tensor.device = device_of(*buffer->client(), buffer->device());
    given->pin.emplace(*numbers);
    data = buffer->data();
  } else {
    data = host_data(*numbers);
  }
  tensor.data = size_bytes(*numbers) > 0 ? const_cast<void*>(data) : nullptr;  // consumers only read
  tensor.ndim = static_cast<std::int32_t>(given->shape.size());
  tensor.dtype = {numbers->type->dlpack_code, numbers->type->dlpack_bits, 1};
  tensor.shape = given->shape.data();
  tensor.strides = given->strides.data();
  given->tensor.manager_ctx = given.get();
  given->tensor.deleter = [](Tensor* self) { delete static_cast<Given<Tensor>*>(self->manager_ctx); };
  return given.release();
}

}  // namespace

const Device& device_of(const Client* client, const DLDevice& wanted) {
  if (client)
    for (const Device& device : client->devices()) {
      const DLDevice found = device_of(*client, device.device);
      if (found.device_type == wanted.device_type && found.device_id == wanted.device_id) return device;
    }
  throw RunError(Reason::unsupported, "a DLPack tensor has to be in host memory" +
                                          std::string(client ? " or on a device of the plugin" : "") +
                                          ", and this one is on device " + std::to_string(wanted.device_id) +
                                          " of type " + std::to_string(static_cast<int>(wanted.device_type)) +
                                          ": copy it to the host first");
}

Numbers from_dlpack(DLManagedTensorVersioned* tensor, const std::shared_ptr<const Client>& client) {
  if (!tensor) throw RunError(Reason::argument, "the DLPack tensor is null");
  if (tensor->version.major != DLPACK_MAJOR_VERSION)
    throw RunError(Reason::unsupported, "a DLPack tensor has to be of version 1, and this one is of version " +
                                            std::to_string(tensor->version.major));
  return taken(client, tensor, (tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) != 0);
}

Numbers from_dlpack(DLManagedTensor* tensor, const std::shared_ptr<const Client>& client) {
  if (!tensor) throw RunError(Reason::argument, "the DLPack tensor is null");
  return taken(client, tensor, false);
}

DLManagedTensorVersioned* to_dlpack(const std::shared_ptr<const Numbers>& numbers) {
  auto* const found = &given<DLManagedTensorVersioned>(numbers)->tensor;
  found->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  found->flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  if (numbers->type->is_part_of_a_byte) found->flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  return found;
}

DLManagedTensor* to_unversioned_dlpack(const std::shared_ptr<const Numbers>& numbers) {
  if (numbers->type->is_part_of_a_byte)
    throw RunError(Reason::unsupported, "DLPack before version 1 cannot say that " + std::string(numbers->type->name) +
                                            " has a byte for each number: take a versioned tensor");
  return &given<DLManagedTensor>(numbers)->tensor;
}

}  // namespace jaxexp::runtime
