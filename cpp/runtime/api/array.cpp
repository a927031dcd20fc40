// The public view of numbers.
#include "runtime/api/array.h"

#include <algorithm>

#include "jaxexp/array.h"
#include "jaxexp/run_error.h"
#include "runtime/array/dlpack.h"
#include "runtime/array/numbers.h"
#include "wire/base/error.h"

namespace jaxexp {
namespace {

using Reason = RunError::Reason;

const runtime::ElementType* type_of(std::string_view dtype) {
  const auto* const type = runtime::element_type(dtype);
  if (!type) throw RunError(Reason::argument, "there are no arrays of dtype '" + std::string(dtype) + "'");
  return type;
}

std::shared_ptr<const runtime::Numbers> host_numbers(std::string_view dtype, std::vector<std::int64_t> shape,
                                                     const void* data, std::shared_ptr<const void> owner) {
  auto numbers = std::make_shared<runtime::Numbers>(
      runtime::Numbers{type_of(dtype), std::move(shape), data, std::move(owner), {}});
  if (runtime::size_bytes(*numbers) > 0 && !data)
    throw RunError(Reason::argument, "the numbers of " + runtime::description(*numbers) + " are at a null pointer");
  return numbers;
}

}  // namespace

Array::Array(std::string_view dtype, std::vector<std::int64_t> shape, const void* data)
    : numbers_(host_numbers(dtype, std::move(shape), data, nullptr)) {}

Array::Array(std::string_view dtype, std::vector<std::int64_t> shape, std::shared_ptr<const void> data)
    : numbers_(host_numbers(dtype, std::move(shape), data.get(), data)) {}

Array::Array(std::string_view dtype, std::vector<std::int64_t> shape, std::shared_ptr<const void> data,
             std::size_t size)
    : Array(dtype, std::move(shape), std::move(data)) {
  if (size != size_bytes())
    throw RunError(Reason::argument,
                   str() + " takes " + std::to_string(size_bytes()) + " bytes, and not " + std::to_string(size));
}

std::string_view Array::dtype() const { return numbers_->type->name; }
const std::vector<std::int64_t>& Array::shape() const { return numbers_->shape; }
std::size_t Array::size() const { return runtime::count(numbers_->shape); }
std::size_t Array::size_bytes() const { return runtime::size_bytes(*numbers_); }
bool Array::is_on_device() const { return !numbers_->parts.empty(); }
std::string Array::str() const { return runtime::description(*numbers_); }

void Array::wait() const {
  for (const runtime::Part& part : numbers_->parts) part.buffer->wait();
}

bool Array::is_ready() const {
  return std::ranges::all_of(numbers_->parts, [](const runtime::Part& part) { return part.buffer->is_ready(); });
}

void Array::on_ready(std::function<void(const RunError*)> done) const {
  runtime::when_ready(*numbers_, std::move(done));
}

const void* Array::data() const { return runtime::host_data(*numbers_); }

Array Array::from_dlpack(DLManagedTensorVersioned* tensor) {
  return Array(std::make_shared<const runtime::Numbers>(runtime::from_dlpack(tensor)));
}
Array Array::from_dlpack(DLManagedTensor* tensor) {
  return Array(std::make_shared<const runtime::Numbers>(runtime::from_dlpack(tensor)));
}
DLManagedTensorVersioned* Array::to_dlpack() const { return runtime::to_dlpack(numbers_); }
DLManagedTensor* Array::to_unversioned_dlpack() const { return runtime::to_unversioned_dlpack(numbers_); }

void Array::copy_to(void* target) const { runtime::copy_to_host(*numbers_, target); }

void Array::check_dtype(std::string_view dtype) const {
  if (dtype != this->dtype())
    throw RunError(Reason::argument, "the array is " + str() + ", and not of dtype " + std::string(dtype));
}

// How a RunError reads.

RunError::RunError(Reason reason, const std::string& message)
    : std::runtime_error(wire::escaped(message)), reason_(reason) {}

}  // namespace jaxexp
