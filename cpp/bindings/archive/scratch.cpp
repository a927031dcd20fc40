// Buffers are used again at once, unless metadata in them are kept.
#include "bindings/archive/scratch.h"

#include <utility>

namespace jaxexp::bindings {
namespace {

/// Memory that comes from the system a page at a time takes longer than reading: up to this size it is kept.
constexpr std::size_t most_kept = std::size_t{1} << 24;
/// Larger ones are read one after the other, so that memory does not grow with the number of threads.
constexpr std::size_t large = std::size_t{1} << 26;

}  // namespace

void Scratch::end_job(std::size_t size) {
  if (size > 2 * job_size) {
    if (memory().size() > most_kept / sizeof(std::uint64_t)) memory() = {};
    std::swap(memory(), buffers_.front());  // the one that may be large
    forget();
  } else if (known_->size() != known_count_) {
    known_count_ = known_->size();
    if (++used_ == buffers_.size()) forget();
  }
}

void Scratch::forget() {
  known_.emplace();
  used_ = known_count_ = 0;
}

void ScratchPool::prepare(std::size_t threads) {
  idle_.reserve(threads);
  while (idle_.size() < threads) idle_.push_back(std::make_unique<Scratch>());
  for (const auto& scratch : idle_) scratch->forget();
}

ScratchPool::Turn::Turn(ScratchPool& pool, std::size_t size) : pool_(pool), size_(size) {
  if (size > large) large_ = std::unique_lock(pool.large_);
  const std::lock_guard lock(pool.mutex_);
  scratch_ = std::move(pool.idle_.back());
  pool.idle_.pop_back();
}

ScratchPool::Turn::~Turn() {
  scratch_->end_job(size_);
  const std::lock_guard lock(pool_.mutex_);
  pool_.idle_.push_back(std::move(scratch_));  // there is room: it was taken from there
}

}  // namespace jaxexp::bindings
