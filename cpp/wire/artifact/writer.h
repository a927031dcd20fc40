// Builds an artifact: equal strings, vectors and tables are written once, module bytes lie behind everything else.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "exported_generated.h"
#include "wire/artifact/layout.h"
#include "wire/base/flat_map.h"

namespace jaxexp::wire {

template <class T>
using Offset = flatbuffers::Offset<T>;
using String = flatbuffers::String;
template <class T>
using Vector = flatbuffers::Vector<T>;

/// The kinds of tables that are written once. All other kinds have one place in an artifact anyway.
enum class Table : std::uint8_t { tree, aval, device, mesh, axis, spec, named_sharding, sharding };

class Writer {
 public:
  explicit Writer(std::size_t expected_size) : fbb_(expected_size) {}

  /// For the generated Create functions of tables.
  flatbuffers::FlatBufferBuilder& fbb() { return fbb_; }

  Offset<String> string(std::string_view text) {
    return shared<String>(strings, text, [&] { return fbb_.CreateString(text.data(), text.size()); });
  }

  template <class T>
  Offset<Vector<Offset<T>>> offsets(std::span<const Offset<T>> elements, bool share = true) {
    static_assert(sizeof(Offset<T>) == sizeof(std::uint32_t));
    const auto make = [&] { return fbb_.CreateVector(elements.data(), elements.size()); };
    if (share) return shared<Vector<Offset<T>>>(vectors, bytes_of(elements), make);
    reserve(elements.size_bytes());
    return make();
  }

  template <class T>
  Offset<Vector<T>> scalars(std::span<const T> elements) {
    return shared<Vector<T>>(static_cast<std::uint8_t>(scalars_of + sizeof(T)), bytes_of(elements),
                             [&] { return fbb_.CreateVector(elements.data(), elements.size()); });
  }

  /// The table that `make` writes (it may write nothing else), or the one that it wrote before for the same type and
  /// fields.
  template <class T, class Make>
  Offset<T> table(Table type, std::initializer_list<std::uint32_t> fields, const Make& make) {
    return shared<T>(static_cast<std::uint8_t>(tables_of + static_cast<std::uint8_t>(type)),
                     bytes_of(std::span<const std::uint32_t>(fields.begin(), fields.size())), make);
  }

  /// As the key of what is written once.
  template <class T>
  static std::string_view bytes_of(std::span<const T> elements) {
    return {reinterpret_cast<const char*>(elements.data()), elements.size_bytes()};
  }

  /// Stands for the module in its Exported until `finish`.
  static constexpr std::uint32_t module_placeholder = 0xFFFFFFFF;
  void module(Offset<schema::Exported> owner, std::span<const std::uint8_t> bytes) {
    modules_.push_back({owner, bytes});
  }

  /// Modules stand in the opposite order of the `module` calls, because owners are written innermost first.
  /// `trailed` makes room for the head of an artifact that has a trailer. Throws TooLarge.
  Layout finish(Offset<schema::Exported> root, bool trailed);

  /// Fills the head of a finished artifact that has `end` bytes, its trailer included.
  void set_end(std::size_t end);

 private:
  // What the keys of `known_` describe.
  static constexpr std::uint8_t strings = 0, vectors = 1, scalars_of = 2, tables_of = 16;

  struct Module {
    Offset<schema::Exported> owner;
    std::span<const std::uint8_t> bytes;
  };

  template <class T, class Make>
  Offset<T> shared(std::uint8_t kind, std::string_view key, const Make& make) {
    const auto [offset, is_new] = known_.insert(kind, key);
    if (is_new) {
      reserve(key.size());
      offset = make().o;
    }
    return offset;
  }

  /// FlatBufferBuilder does not notice when it outgrows its format, so everything that grows with the input is counted
  /// here.
  void reserve(std::size_t size) const;

  flatbuffers::FlatBufferBuilder fbb_;
  Interner known_;
  std::vector<Module> modules_;
};

}  // namespace jaxexp::wire
