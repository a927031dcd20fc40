// DLPack: numbers that libraries share without a copy.
#pragma once

#include <dlpack/dlpack.h>

#include <memory>

#include "runtime/array/numbers.h"

namespace jaxexp::runtime {

/// As in jaxexp/array.h, or with a client as in jaxexp/runtime.h. Throws RunError: then the tensor is still the
/// caller's.
Numbers from_dlpack(DLManagedTensorVersioned* tensor, const std::shared_ptr<const Client>& client = nullptr);
Numbers from_dlpack(DLManagedTensor* tensor, const std::shared_ptr<const Client>& client = nullptr);

/// The client's device whose memory DLPack means. Throws RunError where there is none.
const Device& device_of(const Client* client, const DLDevice& wanted);

/// As in jaxexp/array.h. Throws RunError.
DLManagedTensorVersioned* to_dlpack(const std::shared_ptr<const Numbers>& numbers);
DLManagedTensor* to_unversioned_dlpack(const std::shared_ptr<const Numbers>& numbers);

}  // namespace jaxexp::runtime
