// Threads verify; the caller's thread makes objects, in order, as soon as the next artifact is verified.
#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/artifact/artifact.h"
#include "bindings/base/define.h"
#include "bindings/base/errors.h"
#include "bindings/base/objects.h"
#include "wire/artifact/layout.h"
#include "wire/artifact/opened.h"
#include "wire/base/crew.h"
#include "wire/base/file_bytes.h"
#include "wire/base/memory.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

using Bytes = std::span<const std::uint8_t>;

/// The objects in order, and the ascending indices of those that are exceptions. Where a read stops at the first
/// exception, that one comes last.
using Read = std::pair<nb::typed<nb::list, nb::any>, std::vector<std::size_t>>;

/// `workers` threads, the caller's included, read files and verify everything; the others do not hold the GIL. `admit`
/// is None, or is called with each artifact before anything is made of it; what it raises takes the place of the
/// object.
struct ReadMany {
  Functions functions;
  std::size_t workers;
  bool stop;
  nb::object admit;
};

/// Why a thread made nothing of an item. Not the exception itself: when memory runs out, C++ has room for a few, and
/// there may be one for every item.
struct OutOfMemory {};
using Failure = std::variant<std::monostate, OutOfMemory, std::error_code, wire::FileBytes::TooLarge, wire::Error>;

struct Item {
  // What is to be read, one of the three: a file, a buffer, or nothing, because of an error.
  std::filesystem::path path;
  std::shared_ptr<const Buffer> buffer;
  const wire::FileBytes* buffer_file = nullptr;  // that the buffer is of, or was before the part was copied
  nb::object error;

  Bytes part;                       // of the buffer
  std::span<std::uint8_t> to_read;  // where the part is, if a thread has to read it
  std::uint64_t position = 0;       // in the buffer's file, of what is to be read
  std::vector<Bytes> modules;       // where the part is an image
  std::shared_ptr<const Buffer> modules_buffer;
  nb::object name;             // of the file
  const Item* twin = nullptr;  // an earlier item with the same bytes, which is opened for both

  // What a thread made of it.
  std::optional<wire::FileBytes> file;
  std::shared_ptr<Artifact::Source> source;  // without its buffer, where that is a file's
  const wire::MetadataCache::Metadata* metadata = nullptr;
  std::optional<Later> later;
  Failure failure;
};

/// Makes Exported objects. Those of equal metadata share all that decoding gives, whenever that is.
class Maker {
 public:
  Maker(const Functions& functions, const nb::object& admit, std::size_t most_kinds)
      : functions_(functions), admit_(admit), kinds_(most_kinds) {}

  nb::object exported(const Item& item) {
    Artifact artifact(item.source);
    if (!admit_.is_none()) admit_(nb::cast(artifact));
    Kind* const kind = item.metadata ? &kinds_[item.metadata->number] : nullptr;
    const auto* const notes = kind ? &item.source->opened->trailer()->notes(0) : nullptr;
    const bool is_known = kind && kind->decoded && is_same_but_module(*kind->notes, *notes);
    if (is_known) artifact.share(kind->decoded);
    artifact.prepare(item.later);
    if (kind && !kind->decoded && artifact.decoded()->is_shareable) *kind = {artifact.decoded(), notes};
    return functions_.function(std::move(artifact));
  }

 private:
  /// What the first artifact with some metadata has. Null where other artifacts cannot share it.
  struct Kind {
    std::shared_ptr<Artifact::Decoded> decoded;
    const wire::schema::FunctionNotes* notes = nullptr;
  };

  static bool is_same_but_module(const wire::schema::FunctionNotes& one, const wire::schema::FunctionNotes& other) {
    const auto same = [](const auto* one, const auto* other) {
      const std::uint32_t size = wire::Values::length(one);
      return size == wire::Values::length(other) && (size == 0 || std::equal(one->begin(), one->end(), other->begin()));
    };
    return same(one.weak_arguments(), other.weak_arguments()) && same(one.weak_results(), other.weak_results());
  }

  const Functions& functions_;
  const nb::object& admit_;
  std::vector<Kind> kinds_;  // by the number of the metadata
};

class Reading {
 public:
  Reading(const ReadMany& how, std::vector<Item> items, wire::FileBytes::Reading how_read,
          std::uint64_t most_file_bytes)
      : how_(how), how_read_(how_read), most_file_bytes_(most_file_bytes), items_(std::move(items)) {}

  Read run() {
    const NoCollections pause;
    Maker maker(how_.functions, how_.admit, items_.size());
    nb::list results = new_list();
    std::vector<std::size_t> failed;
    const std::size_t step = std::clamp<std::size_t>(items_.size() / (8 * how_.workers), 1, 16);
    const std::size_t steps = (items_.size() + step - 1) / step;
    const auto end_of = [&](std::size_t number) { return std::min(items_.size(), (number + 1) * step); };
    Threads threads(how_.workers - 1, steps, [&](std::size_t number) {
      for (std::size_t i = number * step; i < end_of(number); ++i) prepare(items_[i]);
    });
    for (std::size_t number = 0; number < steps; ++number) {
      threads.wait_for(number);
      for (std::size_t i = number * step; i < end_of(number); ++i) {
        bool is_made = true;
        results.append(result(items_[i], maker, is_made));
        if (is_made) continue;
        failed.push_back(i);
        if (how_.stop) return {results, failed};
      }
    }
    return {results, failed};
  }

 private:
  class Threads {
   public:
    template <class Job>
    Threads(std::size_t threads, std::size_t jobs, const Job& job) {
      crew_.emplace(threads, jobs, job);
    }
    ~Threads() {
      const Unlocked unlocked;
      crew_.reset();
    }
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

    void wait_for(std::size_t job) {
      for (bool done = false; !done;) {
        {
          const Unlocked unlocked;
          done = crew_->wait_for(job, std::chrono::milliseconds(50));
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
      }
    }

   private:
    std::optional<wire::Crew> crew_;
  };

  /// In any thread, without the GIL.
  void prepare(Item& item) {
    if (item.error.is_valid() || item.twin) return;
    try {
      auto source = std::make_shared<Artifact::Source>();
      source->bytes = item.part;
      if (!item.buffer) {
        item.file = wire::FileBytes::of_artifact(item.path, how_read_, most_file_bytes_);
        source->bytes = item.file->bytes();
        if (source->bytes.empty()) throw wire::Error({}, "a serialized Exported", "an empty file");
      }
      const wire::FileBytes* const file = item.file ? &*item.file : item.buffer_file;
      // Whoever opens parts of a file compares them with the digests of an index, where they have none of their own.
      if (!item.to_read.empty()) file->read(item.position, item.to_read, /*is_digested=*/true);
      wire::open_in(file, source->bytes, !item.modules.empty(), source->opened,
                    [&] { item.metadata = known_.open(source->bytes, item.modules, source->opened); });
      const auto& trailer = source->opened->trailer();
      item.later = later(source->opened->root(), trailer ? &*trailer : nullptr, source->bytes.size());
      item.source = std::move(source);
    } catch (wire::Error& error) {
      item.failure = std::move(error);
    } catch (const wire::FileBytes::TooLarge& error) {
      item.failure = error;
    } catch (const std::system_error& error) {
      item.failure = error.code();
    } catch (const std::bad_alloc&) {
      item.failure = OutOfMemory();
    }
  }

  nb::object result(Item& item, Maker& maker, bool& is_made) {
    is_made = false;
    if (item.error.is_valid()) return item.error;
    try {
      if (item.twin) {
        item.source = item.twin->source;
        item.metadata = item.twin->metadata;
        item.later = item.twin->later;
        item.failure = item.twin->failure;
      }
      if (const auto* size = std::get_if<wire::FileBytes::TooLarge>(&item.failure)) return nb::int_(size->size);
      if (const auto* code = std::get_if<std::error_code>(&item.failure)) return os_error(*code, item.name);
      if (std::holds_alternative<OutOfMemory>(item.failure)) throw std::bad_alloc();
      if (const auto* error = std::get_if<wire::Error>(&item.failure)) throw *error;
      if (!item.twin) complete(item);
      nb::object exported = maker.exported(item);
      is_made = true;
      return exported;
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt, SystemExit
      return nb::borrow(error.value());
    } catch (...) {
      return python_exception(std::current_exception());
    }
  }

  /// Gives an opened item's source what only this thread can make.
  static void complete(Item& item) {
    if (item.buffer) {
      item.source->buffer = item.buffer;
      // A copy does not keep the file, from which nothing more is fetched.
      const bool is_in_file = item.buffer == item.modules_buffer || !item.modules.empty();
      item.source->file = is_in_file ? item.buffer_file : nullptr;
    } else {
      const nb::object file = nb::cast(std::move(*item.file));
      item.source->buffer = std::make_shared<const Buffer>(file, /*in_parts=*/true);
      item.source->file = file_of(file);
    }
    item.source->modules.assign(item.modules.size(), item.modules_buffer);
  }

  static nb::object os_error(const std::error_code& code, const nb::object& file) {
    return nb::borrow(PyExc_OSError)(code.value(), text(code.message()), file);
  }

  const ReadMany& how_;
  const wire::FileBytes::Reading how_read_;
  const std::uint64_t most_file_bytes_;
  std::vector<Item> items_;
  wire::MetadataCache known_;  // of the items' bytes
};

/// An item that is not read yet. Python exceptions are about the item.
Item item_of(nb::handle given) {
  Item item;
  if (PyUnicode_Check(given.ptr()) || (!PyObject_CheckBuffer(given.ptr()) && nb::hasattr(given, "__fspath__"))) {
    item.name = owned(PyOS_FSPath(given.ptr()));
    item.path = path_of(item.name);
  } else {
    item.buffer = stable(given);
    item.part = item.buffer->bytes();
  }
  return item;
}

/// Extents come from an index that was checked.
Bytes part_of(Bytes bytes, nb::handle extent) {
  const auto offset = nb::cast<std::uint64_t>(extent[0]), size = nb::cast<std::uint64_t>(extent[1]);
  if (offset > bytes.size() || size > bytes.size() - offset)
    throw nb::value_error("an extent has to lie inside the buffer");
  return bytes.subspan(offset, size);
}

/// Gives small parts of a file that is read in parts a buffer of their own, which threads fill: fetching each into the
/// memory for all of the file takes longer, because that is there a page at a time. Returns false where they overlap,
/// and leaves them where they are.
bool put_together(const std::vector<Item*>& small, const wire::FileBytes& file) {
  const auto taken = [](const Item& item) { return item.part.size() + wire::padding(item.part.size()); };
  std::size_t size = 0;
  for (const Item* item : small) size += taken(*item);
  if (size > file.bytes().size()) return false;
  const nb::object together = owned(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  const auto buffer = std::make_shared<const Buffer>(together);
  auto* at = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(together.ptr()));
  wire::in_large_pages({at, size});
  for (Item* item : small) {
    item->position = static_cast<std::uint64_t>(item->part.data() - file.bytes().data());
    item->to_read = {at, item->part.size()};
    item->part = item->to_read;
    item->buffer = buffer;
    at += taken(*item);
  }
  return true;
}

/// Copies a part that is not aligned as FlatBuffers are written.
void align(Item& item) {
  if (Buffer::is_aligned(item.part)) return;
  if (item.buffer_file) fetch(*item.buffer_file, item.part, /*is_digested=*/false);
  item.buffer = copied(item.part);
  item.part = item.buffer->bytes();
}

bool is_same_place(Bytes left, Bytes right) { return left.data() == right.data() && left.size() == right.size(); }

Read read_items(const ReadMany& how, const Argument<nb::list, nb::object>& given, bool in_parts,
                std::optional<std::uint64_t> most_file_bytes) {
  std::vector<Item> items(given.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const nb::object one = nb::borrow(given[i]);
    try {
      items[i] = item_of(one);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      if (error.matches(PyExc_TypeError))
        items[i].error = export_type_error(
            std::string("artifacts are read from paths (str or os.PathLike) and from buffers such as bytes, bytearray, "
                        "memoryview or mmap, not ") +
            nb::repr(one.type()).c_str());
      else
        items[i].error = nb::borrow(error.value());
    }
  }
  const auto how_read = in_parts ? wire::FileBytes::Reading::large_in_parts : wire::FileBytes::Reading::at_once;
  return Reading(how, std::move(items), how_read, most_file_bytes.value_or(UINT64_MAX)).run();
}

/// Every extent is a tuple of an offset into one buffer, a size, and the (offset, size) of modules where that part is
/// an image.
Read read_slices(const ReadMany& how, HasBuffer owner,
                 const Argument<nb::list, nb::typed<nb::tuple, int, int, nb::object>>& extents) {
  const wire::FileBytes* const file = file_of(owner);
  const std::shared_ptr<const Buffer> buffer = stable(owner, Buffer::alignment, /*in_parts=*/true);
  const Bytes bytes = buffer->bytes();
  std::vector<Item> items(extents.size());
  std::map<std::pair<const std::uint8_t*, std::size_t>, const Item*> first;  // with these bytes
  std::vector<Item*> small;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const nb::object extent = nb::borrow(extents[i]);
    Item& item = items[i];
    item.buffer = item.modules_buffer = buffer;
    item.buffer_file = file;
    item.part = part_of(bytes, extent);
    for (nb::handle module : nb::object(extent[2])) item.modules.push_back(part_of(bytes, module));
    const auto [same, is_new] = first.try_emplace({item.part.data(), item.part.size()}, &item);
    if (!is_new && std::ranges::equal(same->second->modules, item.modules, is_same_place)) item.twin = same->second;
    if (item.twin) continue;
    if (is_new && file && file->is_in_parts() && item.part.size() < wire::worth_parts)
      small.push_back(&item);
    else
      align(item);
  }
  if (!small.empty() && !put_together(small, *file))
    for (Item* item : small) align(*item);
  return Reading(how, std::move(items), wire::FileBytes::Reading::at_once, UINT64_MAX).run();
}

}  // namespace

void define_read_many(nb::module_& m) {
  nb::class_<ReadMany>(m, "ReadMany", "How many artifacts are read at once, and what is made of them.")
      .def(
          "__init__",
          [](ReadMany* made, const Functions& functions, std::size_t workers, bool stop, nb::object admit) {
            check_workers(workers);
            new (made) ReadMany{functions, workers, stop, std::move(admit)};
          },
          "functions"_a, "workers"_a, "stop"_a, "admit"_a.none(),
          nb::sig("def __init__(self, functions: Functions, workers: int, stop: bool, "
                  "admit: collections.abc.Callable[[Artifact], None] | None) -> None"))
      .def(
          "items", &read_items, "items"_a, "in_parts"_a, "most_file_bytes"_a.none(),
          "The functions in files and buffers, and the indices of the exceptions among them. Large files are read in "
          "parts if that is allowed. For a file of more than `most_file_bytes`, its size is returned, and counts as an "
          "exception.")
      .def("slices", &read_slices, "owner"_a, "extents"_a, "The same for parts of one buffer.");
}

}  // namespace jaxexp::bindings
