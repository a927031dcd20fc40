// The memory into which threads read members of a file, kept from one job to the next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
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
  /// After a job over `size` bytes.
  void end_job(std::size_t size);
  /// Makes all buffers free for other bytes.
  void forget();

 private:
  std::array<std::vector<std::uint64_t>, 8> buffers_;
  std::optional<wire::Known> known_;
  std::size_t used_, known_count_;
};

class ScratchPool {
 public:
  /// What a job has while it runs.
  class Turn {
   public:
    Turn(ScratchPool& pool, std::size_t size);
    ~Turn();
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
  void prepare(std::size_t threads);

 private:
  std::mutex mutex_, large_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace jaxexp::bindings
