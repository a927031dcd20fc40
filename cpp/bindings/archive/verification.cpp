// Two passes in each step: over modules that are apart from members, and over members.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bindings/archive/index_view.h"
#include "bindings/base/buffer.h"
#include "bindings/base/define.h"
#include "bindings/base/objects.h"
#include "bindings/base/texts.h"
#include "wire/archive/verify_member.h"
#include "wire/artifact/opened.h"
#include "wire/base/crew.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"

namespace jaxexp::bindings {
namespace {

/// What one thread has: few buffers, which stay in its core's cache.
class Scratch {
 public:
  /// How many bytes are read at once: less, and calls of the system take longer than copying; more, and bytes leave the
  /// cache before they are looked at.
  static constexpr std::size_t job_size = std::size_t{1} << 17;

  Scratch() { forget(); }

  std::vector<std::uint64_t>& memory() { return buffers_[used_]; }
  /// Metadata that this thread has seen, in buffers that are kept for it.
  wire::MetadataCache& known() { return *known_; }
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
  void forget() {
    known_.emplace();
    used_ = known_count_ = 0;
  }

 private:
  /// Memory that comes from the system a page at a time takes longer than reading: up to this size it is kept.
  static constexpr std::size_t most_kept = std::size_t{1} << 24;

  std::array<std::vector<std::uint64_t>, 8> buffers_;
  std::optional<wire::MetadataCache> known_;
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

/// A member as it is verified: from its header in the ZIP file on.
struct Part {
  std::uint32_t number;
  wire::Range range;
  std::span<const std::uint8_t> bytes = {};
  std::vector<std::uint64_t> aligned = {};  // the same, where they are not
  std::optional<wire::Error> error = {};
  wire::Texts texts = {};
};

struct Module {
  wire::ModuleDigests::key_type place;
  wire::Range range = {place.first, place.second};
  std::span<const std::uint8_t> bytes = {};
  wire::Digest digest = {};
};

/// What is read from a file between two signs of life.
constexpr std::uint64_t step_size = std::uint64_t{1} << 25;
/// How many members in memory are a job.
constexpr std::size_t members_in_job = 16;

wire::Range range_of(const wire::schema::Place& place) {
  return {place.position() - place.header(), std::uint64_t{place.header()} + place.size()};
}

/// Cuts what is read from a file into jobs of a size that stays in a core's cache, or of one item where it is larger.
template <class Item>
std::vector<std::span<Item>> jobs_of(std::span<Item> items) {
  std::vector<std::span<Item>> jobs;
  for (std::size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    std::uint64_t size = 0;
    do size += items[end++].range.size;
    while (end < items.size() && size + items[end].range.size <= Scratch::job_size);
    jobs.push_back(items.subspan(begin, end - begin));
  }
  return jobs;
}

/// In threads, reads items and does `use` with each, and with what a thread keeps.
template <class Item, class Use>
void for_all(const wire::FileBytes& file, std::vector<Item>& items, ScratchPool& pool, std::size_t workers,
             const Use& use) {
  const auto jobs = jobs_of(std::span(items));
  pool.prepare(std::min(workers, jobs.size()));
  wire::Crew::run(workers, jobs.size(), [&](std::size_t job) {
    std::vector<wire::Range> ranges;
    std::size_t size = 0;
    for (const Item& item : jobs[job]) {
      ranges.push_back(item.range);
      size += static_cast<std::size_t>(item.range.size);
    }
    const ScratchPool::Turn turn(pool, size);
    const auto bytes = wire::read_ranges(file, ranges, turn->memory());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      jobs[job][i].bytes = bytes[i];
      use(jobs[job][i], turn->known());
    }
  });
}

/// The numbers of members that are damaged, or have texts that Python verifies.
nb::list verdicts(const std::vector<Part>& parts) {
  nb::list found = new_list();
  for (const Part& part : parts) {
    const auto& error = part.error;
    if (error)
      found.append(
          nb::make_tuple(part.number, nb::make_tuple(error->path, error->expected, error->found), nb::tuple()));
    else if (!part.texts.empty())
      found.append(nb::make_tuple(part.number, nb::none(), to_python(part.texts)));
  }
  return found;
}

/// Each module is read once, in whatever step, and by however many members it is used.
class Verification {
 public:
  explicit Verification(nb::object index)
      : owner_(std::move(index)), index_(nb::cast<const IndexView&>(owner_).index()) {}

  Extent extent(std::uint32_t number) const {
    const auto& member = index_.member(number);
    nb::list modules = new_list();
    for (const Module& module : modules_of(member))
      modules.append(nb::make_tuple(module.place.first, module.place.second));
    const auto [position, size] = range_of(*member.place());
    return nb::make_tuple(position, size, nb::tuple(modules));
  }

  nb::list step(const Numbers& numbers, const nb::list& parts, std::size_t workers) {
    check_workers(workers);
    std::vector<std::unique_ptr<const Buffer>> buffers;  // as long as they are read
    const auto bytes_of = [&](nb::handle part) {
      return buffers.emplace_back(std::make_unique<const Buffer>(part))->bytes();
    };
    std::vector<Part> members;
    std::map<wire::ModuleDigests::key_type, Module> found;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto number = nb::cast<std::uint32_t>(numbers[i]);
      members.push_back({number, {}, bytes_of(parts[i][0])});
      const nb::object given = parts[i][1];
      std::size_t k = 0;
      for (Module& module : modules_of(index_.member(number))) {
        module.bytes = bytes_of(given[k++]);
        found.try_emplace(module.place, module);
      }
    }
    std::vector<Module> modules;
    for (const auto& [place, module] : found) modules.push_back(module);
    {
      const Unlocked unlocked;
      wire::Crew::run(workers, modules.size(),
                      [&](std::size_t i) { modules[i].digest = wire::digest(modules[i].bytes); });
      remember(modules);
      wire::MetadataCache known;
      const std::size_t jobs = (members.size() + members_in_job - 1) / members_in_job;
      wire::Crew::run(workers, jobs, [&](std::size_t job) {
        const std::size_t begin = job * members_in_job, count = std::min(members_in_job, members.size() - begin);
        for (Part& part : std::span(members).subspan(begin, count)) verify(part, known);
      });
    }
    return verdicts(members);
  }

  nb::tuple step_of_file(const wire::FileBytes& file, const Numbers& numbers, std::size_t first, std::size_t workers) {
    check_workers(workers);
    std::vector<Module> modules;
    std::vector<Part> members = parts_of(numbers, first, modules);
    {
      const Unlocked unlocked;
      for_all(file, modules, scratch_, workers,
              [](Module& module, wire::MetadataCache&) { module.digest = wire::digest(module.bytes); });
      remember(modules);
      for_all(file, members, scratch_, workers, [&](Part& part, wire::MetadataCache& known) { verify(part, known); });
    }
    return nb::make_tuple(first + members.size(), verdicts(members));
  }

 private:
  /// Those that are apart from a member, and new.
  std::vector<Module> modules_of(const wire::schema::Member& member) const {
    std::vector<Module> found;
    if (!member.place()->apart()) return found;
    for (const auto* module : *member.modules())
      if (const auto place = std::pair(module->position(), module->size()); !modules_.contains(place))
        found.push_back({place});
    return found;
  }

  /// The numbers of members from `numbers[first]` on, and their modules, in the order of their places.
  std::vector<Part> parts_of(const Numbers& numbers, std::size_t first, std::vector<Module>& modules) const {
    std::vector<Part> members;
    std::map<wire::ModuleDigests::key_type, Module> found;
    for (std::uint64_t size = 0; first < numbers.size() && size < step_size; ++first) {
      const auto number = nb::cast<std::uint32_t>(numbers[first]);
      const auto& member = index_.member(number);
      members.push_back({number, range_of(*member.place())});
      size += members.back().range.size;
      for (const Module& module : modules_of(member))
        if (found.try_emplace(module.place, module).second) size += module.range.size;
    }
    for (const auto& [place, module] : found) modules.push_back(module);
    return members;
  }

  void remember(const std::vector<Module>& modules) {
    for (const Module& module : modules) modules_.emplace(module.place, module.digest);
  }

  void verify(Part& part, wire::MetadataCache& known) const {
    try {
      part.texts = wire::verify_member(index_, part.number, part.bytes, modules_, known, part.aligned);
    } catch (wire::Error& error) {
      part.error = std::move(error);
    }
  }

  const nb::object owner_;
  const wire::ArchiveIndex& index_;
  wire::ModuleDigests modules_;
  ScratchPool scratch_;
};

}  // namespace

void define_archive_verification(nb::module_& m) {
  nb::class_<Verification>(m, "ArchiveVerification", "The verification of an archive's members, in steps.")
      .def(nb::init<nb::typed<nb::object, IndexView>>(), "index"_a)
      .def("extent", &Verification::extent, "number"_a,
           "Where the bytes of a member are, from its header in the ZIP file on, and those of its modules that were in "
           "no step before.")
      .def("step", &Verification::step, "numbers"_a, "parts"_a, "workers"_a,
           nb::sig("def step(self, numbers: list[int], parts: list[tuple[bytes, list[bytes]]], "
                   "workers: int) -> list[tuple[int, tuple[str, str, str] | None, tuple[typing.Any, ...]]]"),
           "Compares members with what they have to be, in threads, given the bytes that `extent` named. Returns for "
           "each damaged one its number, and where, what was expected, and what was found; for each other one that has "
           "`Artifact.texts`, its number and these.")
      .def("step_of_file", &Verification::step_of_file, "file"_a, "numbers"_a, "first"_a, "workers"_a,
           nb::sig("def step_of_file(self, file: FileBytes, numbers: list[int], first: int, workers: int) -> "
                   "tuple[int, list[tuple[int, tuple[str, str, str] | None, tuple[typing.Any, ...]]]]"),
           "The same for members of a file, from the first on, as many as make a step. Returns the first of the next "
           "step, too.");
}

}  // namespace jaxexp::bindings
