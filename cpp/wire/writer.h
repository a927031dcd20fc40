// Builds an artifact: equal strings, vectors and tables are written once, module bytes lie behind everything else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "exported_generated.h"

namespace jaxexp::wire {

template <class T>
using Offset = flatbuffers::Offset<T>;
using String = flatbuffers::String;
template <class T>
using Vector = flatbuffers::Vector<T>;

/// An artifact in pieces: metadata, then for each module its length, its bytes, and zeros up to a multiple of four.
/// The pieces are views of the Writer's memory and of the modules that it was given.
struct Layout {
  std::span<const std::uint8_t> metadata;
  std::vector<std::span<const std::uint8_t>> modules;
  std::size_t size;
};

constexpr std::size_t padding(std::size_t size) { return (4 - size % 4) % 4; }

/// What tells the tables apart that are written once; the others have one place in an artifact anyway.
enum class Table : std::uint32_t { tree, aval, device, mesh, axis, spec, named_sharding, sharding };

class Writer {
 public:
  explicit Writer(std::size_t expected_size) : fbb_(expected_size) {}

  /// For the generated Create functions of tables.
  flatbuffers::FlatBufferBuilder& fbb() { return fbb_; }

  Offset<String> string(std::string_view text) {
    return shared<String>(strings_, text, [&] { return fbb_.CreateString(text.data(), text.size()); });
  }

  template <class T>
  Offset<Vector<Offset<T>>> offsets(std::span<const Offset<T>> elements, bool share = true) {
    static_assert(sizeof(Offset<T>) == sizeof(std::uint32_t));
    const std::span words(reinterpret_cast<const std::uint32_t*>(elements.data()), elements.size());
    const auto make = [&] { return fbb_.CreateVector(elements.data(), elements.size()); };
    if (share) return shared<Vector<Offset<T>>>(vectors_, words, make);
    reserve(words.size_bytes());
    return make();
  }

  template <class T>
  Offset<Vector<T>> scalars(std::span<const T> elements) {
    const std::string_view raw(reinterpret_cast<const char*>(elements.data()), elements.size_bytes());
    return shared<Vector<T>>(raw_[sizeof(T) / 2], raw,
                             [&] { return fbb_.CreateVector(elements.data(), elements.size()); });
  }

  /// The table that `make` writes, or the one that it wrote before for the same type and fields.
  template <class T, class Make>
  Offset<T> table(Table type, std::initializer_list<std::uint32_t> fields, const Make& make) {
    key_.assign(1, static_cast<std::uint32_t>(type));
    key_.insert(key_.end(), fields);
    return shared<T>(tables_, std::span<const std::uint32_t>(key_), make);
  }

  /// Stands for the module in its Exported until `finish`.
  static constexpr std::uint32_t module_placeholder = 0xFFFFFFFF;
  void module(Offset<schema::Exported> owner, std::span<const std::uint8_t> bytes) {
    modules_.push_back({owner, bytes});
  }

  /// Modules follow in the order opposite to that of the `module` calls: owners are written innermost first.
  /// Throws TooLarge.
  Layout finish(Offset<schema::Exported> root);

  struct TooLarge : std::exception {
    const char* what() const noexcept override { return "the artifact would be 2 GiB or more, beyond the format"; }
  };

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    std::size_t operator()(std::span<const std::uint32_t> words) const {
      return (*this)({reinterpret_cast<const char*>(words.data()), words.size_bytes()});
    }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::string_view a, std::string_view b) const { return a == b; }
    bool operator()(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) const {
      return std::ranges::equal(a, b);
    }
  };
  template <class Key>
  using Known = std::unordered_map<Key, std::uint32_t, Hash, Equal>;

  struct Module {
    Offset<schema::Exported> owner;
    std::span<const std::uint8_t> bytes;
  };

  using Words = std::vector<std::uint32_t>;

  template <class T, class Owned, class Key, class Make>
  Offset<T> shared(Known<Owned>& known, Key key, const Make& make) {
    if (const auto found = known.find(key); found != known.end()) return found->second;
    reserve(key.size() * sizeof(key[0]));
    const Offset<T> offset = make();
    known.emplace(Owned(key.begin(), key.end()), offset.o);
    return offset;
  }

  /// FlatBufferBuilder has no error for outgrowing its format, so whatever grows with the input passes here.
  void reserve(std::size_t size) const;

  flatbuffers::FlatBufferBuilder fbb_;
  Known<std::string> strings_, raw_[3];  // raw elements of one, two and four bytes
  Known<Words> vectors_, tables_;
  Words key_;
  std::vector<Module> modules_;
};

}  // namespace jaxexp::wire
