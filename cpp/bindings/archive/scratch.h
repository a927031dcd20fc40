// The memory into which threads read members of a file, kept from one job to the next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "wire/artifact/known.h"

namespace jaxexp::bindings {

/// What one thread has: few buffers, which stay in its core's cache.
class Scratch {
 public:
  /// How many bytes are read at once: less, and calls of the system take longer than copying; more, and bytes leave the
  /// cache before they are looked at.
  static constexpr std::size_t job_size = std::size_t{1} << 17;

  Scratch() { forget(); }

  /// For the job at hand.
  std::vector<std::uint64_t>& memory() { return buffers_[used_]; }
  /// Metadata that this thread has seen, in buffers that are kept for it.
  wire::Known& known() { return *known_; }
  /// After a job over `size` bytes. Its buffer is used again at once, unless metadata in it are kept.
  void end_job(std::size_t size) {
    if (size > 2 * job_size) {
      if (memory().size() > most_kept / sizeof(std::uint64_t)) memory() = {};
      std::swap(memory(), buffers_.front());  // the one that may be large
      forget();
    } else if (known_->size() != known_count_) {
      known_count_ = known_->size();
      if (++used_ == buffers_.size()) forget();
    }
  }
  /// Makes all buffers free for other bytes.
  void forget() {
    known_.emplace();
    used_ = known_count_ = 0;
  }

 private:
  /// Memory that comes from the system a page at a time takes longer than reading: up to this size it is kept.
  static constexpr std::size_t most_kept = std::size_t{1} << 24;

  std::array<std::vector<std::uint64_t>, 8> buffers_;
  std::optional<wire::Known> known_;
  std::size_t used_, known_count_;
};

class ScratchPool {
 public:
  /// What a job has while it runs.
  class Turn {
   public:
    Turn(ScratchPool& pool, std::size_t size) : pool_(pool), size_(size) {
      if (size > large) large_ = std::unique_lock(pool.large_);
      const std::lock_guard lock(pool.mutex_);
      scratch_ = std::move(pool.idle_.back());
      pool.idle_.pop_back();
    }
    ~Turn() {
      scratch_->end_job(size_);
      const std::lock_guard lock(pool_.mutex_);
      pool_.idle_.push_back(std::move(scratch_));  // there is room: it was taken from there
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    Scratch* operator->() const { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    const std::size_t size_;
    std::unique_lock<std::mutex> large_;
    std::unique_ptr<Scratch> scratch_;
  };

  /// For so many jobs at the same time. What earlier ones have seen is forgotten.
  void prepare(std::size_t threads) {
    idle_.reserve(threads);
    while (idle_.size() < threads) idle_.push_back(std::make_unique<Scratch>());
    for (const auto& scratch : idle_) scratch->forget();
  }

 private:
  /// Larger ones are read one after the other, so that memory does not grow with the number of threads.
  static constexpr std::size_t large = std::size_t{1} << 26;

  std::mutex mutex_, large_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace jaxexp::bindings
