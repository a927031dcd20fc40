// Jobs for several threads, whose owner takes the results in order, and does jobs itself while it waits.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace jaxexp::wire {

/// Its threads end with it, for whatever reason its owner leaves: running jobs are finished, no others are begun.
class Crew {
 public:
  /// Begins `jobs` jobs, in their order, in `threads` threads beside the owner's, or fewer where the system gives no
  /// more. `job` is called with the number of each. After an exception of a job no others are begun, and waiting throws
  /// the first one in the owner's thread.
  Crew(std::size_t threads, std::size_t jobs, std::function<void(std::size_t)> job)
      : job_(std::move(job)), jobs_(jobs), done_(std::make_unique<std::atomic<bool>[]>(jobs)) {
    threads = std::min(threads, jobs - std::min<std::size_t>(jobs, 1));
    try {
      threads_.reserve(threads);
      for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      // No thread or no memory is left: the owner does the jobs that nobody else does.
    }
  }
  /// Does all jobs in this many threads, the caller's included.
  static void run(std::size_t threads, std::size_t jobs, std::function<void(std::size_t)> job) {
    Crew crew(threads - 1, jobs, std::move(job));
    for (std::size_t i = 0; i < jobs; ++i)
      while (!crew.wait_for(i, std::chrono::hours(1))) {
      }
  }

  ~Crew() {
    next_ = jobs_;
    for (std::thread& thread : threads_) thread.join();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  /// Returns true once a job is done. Until then the owner does jobs that no thread has begun. Returns false where
  /// there are none left and the job is not done within `patience`. Throws the first exception of any job.
  bool wait_for(std::size_t job, std::chrono::milliseconds patience) {
    while (!is_done(job)) {
      if (do_one()) continue;
      std::unique_lock lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      if (!finished_.wait_for(lock, patience, [&] { return is_done(job) || failure_; })) return false;
    }
    return true;
  }

 private:
  bool is_done(std::size_t job) const { return done_[job].load(std::memory_order_acquire); }

  void work() {
    while (do_one()) {
    }
  }

  bool do_one() {
    const std::size_t job = next_.fetch_add(1);
    if (job >= jobs_) return next_ = jobs_, false;  // far from an overflow, however often it is asked
    try {
      job_(job);
      const std::lock_guard lock(mutex_);  // an owner that saw it unfinished is waiting by now
      done_[job].store(true, std::memory_order_release);
    } catch (...) {
      // Whatever it is: beyond this function of a thread it would end the process.
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = jobs_;
    }
    finished_.notify_one();
    return true;
  }

  const std::function<void(std::size_t)> job_;
  const std::size_t jobs_;
  const std::unique_ptr<std::atomic<bool>[]> done_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace jaxexp::wire
