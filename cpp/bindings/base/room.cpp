// The table doubles when half of it is full, and never shrinks: it grows for as many objects as are there at once.
#include "bindings/base/room.h"

#include <cstdlib>
#include <new>
#include <vector>

namespace jaxexp::bindings {
namespace {

struct Placeholder {};

/// Of a place in the table, in the old one and in the new one, twice as many as there are objects.
constexpr std::size_t bytes_of_object = 2 * 2 * 32;
constexpr std::size_t ahead = 1024;

}  // namespace

void keep_room(std::size_t alive) {
  static std::size_t room = 0;
  if (alive + ahead <= room) return;
  const std::size_t wanted = 2 * (alive + ahead);
  void* const probe = std::malloc(wanted * bytes_of_object);
  if (!probe) throw std::bad_alloc();
  std::free(probe);
  std::vector<nb::object> objects;
  objects.reserve(wanted);
  while (objects.size() < wanted) objects.push_back(nb::cast(Placeholder()));
  room = wanted;
}

void define_room(nb::module_& m) {
  nb::class_<Placeholder>(m, "_Placeholder", "Takes a place in the table of objects.");
  keep_room(0);
}

}  // namespace jaxexp::bindings
