// Parts of an array are put together in host memory.
#include "runtime/array/numbers.h"

#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "wire/base/error.h"

namespace jaxexp::runtime {
namespace {

constexpr std::size_t longest_shape = 300;  // in a message: files may have shapes of any length

/// Copies a block without gaps into a larger array, row by row.
void place(const Block& part, const std::byte* from, const Shape& strides, std::size_t bytes, std::byte* to) {
  for (std::size_t d = 0; d < part.start.size(); ++d) to += part.start[d] * strides[d];
  if (part.shape.empty()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t inner = part.shape.size() - 1;
  const std::size_t row = static_cast<std::size_t>(part.shape[inner]) * bytes;
  Shape at(inner, 0);
  for (std::size_t rows = count({part.shape.begin(), part.shape.end() - 1}); rows > 0; --rows, from += row) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < inner; ++d) offset += at[d] * strides[d];
    std::memcpy(to + offset, from, row);
    for (std::size_t d = inner; d-- > 0 && ++at[d] == part.shape[d];) at[d] = 0;
  }
}

}  // namespace

std::size_t count(const Shape& shape, std::size_t bytes) {
  std::size_t product = bytes;
  constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  for (const std::int64_t size : shape)
    if (size == 0) return 0;
  for (const std::int64_t size : shape) {
    if (size < 0 || product > most / static_cast<std::size_t>(size))
      throw RunError(RunError::Reason::argument, "there can be no array of shape " + description(shape));
    product *= static_cast<std::size_t>(size);
  }
  return product;
}

std::size_t size_bytes(const Numbers& numbers) { return count(numbers.shape, numbers.type->bytes); }

Shape row_major_strides(const Shape& shape, std::size_t bytes) {
  Shape strides(shape.size());
  auto stride = static_cast<std::int64_t>(bytes);
  for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) strides[d] = stride;
  return strides;
}

std::string description(const Shape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? "," : "") + std::to_string(shape[d]);
  return wire::shortened(text + "]", longest_shape);
}

std::string description(const Numbers& numbers) { return std::string(numbers.type->name) + description(numbers.shape); }

void when_ready(const Numbers& numbers, std::function<void(const RunError*)> done) {
  if (numbers.parts.empty()) return done(nullptr);
  if (numbers.parts.size() == 1) return numbers.parts.front().buffer->when_ready(std::move(done));
  struct All {
    std::function<void(const RunError*)> done;
    std::atomic<std::size_t> missing;
    std::mutex mutex;
    std::optional<RunError> error;  // the first
  };
  const auto all = std::make_shared<All>();
  all->done = std::move(done);
  all->missing = numbers.parts.size();
  for (const Part& part : numbers.parts)
    part.buffer->when_ready([all](const RunError* error) {
      if (error) {
        const std::lock_guard lock(all->mutex);
        if (!all->error) all->error = *error;
      }
      if (--all->missing == 0) all->done(all->error ? &*all->error : nullptr);
    });
}

const std::shared_ptr<const Buffer>* buffer_on_host(const Numbers& numbers) {
  if (numbers.parts.empty()) return nullptr;
  const Part& first = numbers.parts.front();
  const bool is_on_host =
      numbers.is_on_host ? *numbers.is_on_host : !first.block && first.buffer->is_on_host(*numbers.type, numbers.shape);
  return is_on_host ? &first.buffer : nullptr;
}

const void* host_data(const Numbers& numbers) {
  return numbers.parts.empty() ? numbers.data : numbers.host_view.data_of(numbers);
}

void Uses::pin() const {
  ++pins_;
  while (calls_ > 0) std::this_thread::yield();
}

const void* HostView::data_of(const Numbers& numbers) const {
  if (const void* const known = data_) return known;
  const PluginCall call;  // after a fork, the mutex may stay locked
  if (const auto* const buffer = buffer_on_host(numbers)) {
    numbers.uses.pin();
    try {
      return data_ = (*buffer)->data();
    } catch (...) {
      numbers.uses.unpin();
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  if (!copy_) {
    Numbers copy = on_host(numbers);
    copy_ = std::move(copy.owner);
    data_ = copy.data;
  }
  return data_;
}

void copy_to_host(const Numbers& numbers, void* target) {
  const std::size_t size = size_bytes(numbers);
  if (numbers.parts.empty()) {
    if (size > 0) std::memcpy(target, numbers.data, size);
    return;
  }
  if (const auto* const buffer = buffer_on_host(numbers)) {
    const Pin pin(numbers);
    const void* const data = (*buffer)->data();
    if (size > 0) std::memcpy(target, data, size);
    return;
  }
  if (!numbers.parts.front().block) {
    numbers.parts.front().buffer->copy_to(target, size);
    return;
  }
  const Shape strides = row_major_strides(numbers.shape, numbers.type->bytes);
  std::set<Shape> seen;
  for (const Part& part : numbers.parts) {
    const Block& block = *part.block;  // no part is all of the array
    if (!seen.insert(block.start).second) continue;
    const std::size_t part_size = count(block.shape, numbers.type->bytes);
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(part_size);
    part.buffer->copy_to(bytes.get(), part_size);
    if (part_size > 0) place(block, bytes.get(), strides, numbers.type->bytes, static_cast<std::byte*>(target));
  }
}

Numbers on_host(const Numbers& numbers) {
  const auto bytes = std::shared_ptr<std::byte[]>(new std::byte[size_bytes(numbers)]);
  copy_to_host(numbers, bytes.get());
  return {numbers.type, numbers.shape, bytes.get(), bytes, {}};
}

Numbers padded(const Numbers& numbers, const Shape& shape) {
  if (!numbers.parts.empty()) return padded(on_host(numbers), shape);
  const std::size_t bytes = numbers.type->bytes;
  const auto made = std::shared_ptr<std::byte[]>(new std::byte[count(shape, bytes)]());
  const Block all{Shape(shape.size()), numbers.shape};
  if (size_bytes(numbers) > 0)
    place(all, static_cast<const std::byte*>(numbers.data), row_major_strides(shape, bytes), bytes, made.get());
  return {numbers.type, shape, made.get(), made, {}};
}

}  // namespace jaxexp::runtime
