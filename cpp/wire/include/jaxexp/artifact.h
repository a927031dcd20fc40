// Serialized functions of jax.export and jaxexp, read from C++ without Python and without FlatBuffers' headers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jaxexp/deserialization_error.h"

namespace jaxexp {

/// A text for people, on a terminal or in a log. The names that this header returns are whatever the author of the
/// artifact wrote, with any byte in them: line breaks, commands for terminals, characters that turn the direction of
/// others. This shows what is not printable, or not UTF-8, as in "\\n", "\\x1b" and "\\u202e". A text that was escaped
/// stays as it is. `str()` and messages of exceptions are escaped already.
std::string escaped(std::string_view text);

struct MeshAxis {
  std::string_view name;
  std::uint32_t size;
};

/// How an argument or a result is divided among devices.
struct Sharding {
  std::vector<MeshAxis> mesh;
  std::vector<std::vector<std::string_view>> partitions;  // for each dimension the mesh axes that divide it
  std::optional<std::string_view> memory_kind;
  std::vector<std::string_view> unreduced;  // mesh axes along which the devices' numbers still have to be added

  /// As in "{data: 4, model: 2} (data, None)"; escaped, and a long text is cut.
  std::string str() const;
};

/// The dimensions of a value: integers, or expressions of dimension variables. Values may share them.
class Dimensions {
 public:
  Dimensions() = default;
  explicit Dimensions(std::vector<std::string_view> texts)
      : texts_(std::make_shared<const std::vector<std::string_view>>(std::move(texts))) {}

  std::size_t size() const { return all().size(); }
  bool empty() const { return all().empty(); }
  std::string_view operator[](std::size_t i) const { return all()[i]; }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }

 private:
  std::span<const std::string_view> all() const {
    return texts_ ? std::span(*texts_) : std::span<const std::string_view>();
  }

  std::shared_ptr<const std::vector<std::string_view>> texts_;
};

/// An argument or a result.
struct Value {
  /// As JAX names it, such as "float32"; "dtype 40" for one that was registered by its number.
  std::string dtype;
  Dimensions shape;
  std::shared_ptr<const Sharding> sharding;  // null where it has none
  /// The xla.OpSharding that artifacts from before JAX 0.9 have instead.
  std::span<const std::uint8_t> op_sharding;
  /// Where it is in a call in Python, as in "args[0]['x']", "kwargs['x']" or "result[1]". If the artifact names
  /// weights, these are "weights['layers/0/w']", and "args[0]" is the first argument after them. A VJP takes all
  /// arguments by number. Children of custom nodes have their names, as in "args[0].bias", or numbers if the artifact
  /// does not name them, as in "args[0]<2>". A long path is cut. Names may have any character: `escaped(path)` is for
  /// people.
  std::string path;

  /// As in "float32[b,4]"; escaped, and a long text is cut.
  std::string str() const;
};

/// A node of the tree of the arguments, or of the results. A tree is its nodes, each before its children.
struct Node {
  enum class Kind { leaf, none, tuple, list, dict, custom };

  Kind kind;
  std::size_t nr_children;
  std::vector<std::string_view> keys;  // of a dict, one for each child
  /// Of a custom node, the name under which its class was registered for serialization ("jaxexp.node" where it was
  /// not), and what describes it, in the words of whoever registered it.
  std::string_view name = {};
  std::span<const std::uint8_t> data = {};
};

/// The arrays that a function takes first and that are not in the artifact, but in files of tensors (safetensors)
/// beside it, or in its archive.
struct Weights {
  using Digest = std::array<std::uint8_t, 16>;  // XXH3

  struct File {
    std::string_view name;  // in the folder of the artifact; it was not checked to be a plain name
    std::uint64_t size;     // in bytes
    Digest content;         // of the digests of all tensors, as the file's header has it
  };
  struct Tensor {
    std::string_view name;
    std::size_t file;    // index into `files`
    std::uint64_t size;  // in bytes
    Digest digest;
    std::span<const std::uint8_t> in_archive;  // its bytes; at a null pointer where no archive has them
  };
  struct OtherName {  // of tied weights
    std::string_view name;
    std::size_t tensor;  // index into `tensors`
  };

  std::vector<File> files;
  std::vector<Tensor> tensors;  // one for each of the first arguments
  std::vector<OtherName> other_names;

  /// Whether the artifact is in an archive that has tensors of it.
  bool is_in_archive() const {
    return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.in_archive.data() != nullptr; });
  }
};

/// A call that was recorded, with its results: docs/guide/check.md says what for.
struct Case {
  /// How to draw random numbers: docs/formats/cases.md defines them bit for bit.
  struct Drawn {
    enum class Distribution : std::uint8_t { normal, uniform, integers };

    Distribution distribution;
    std::uint64_t seed;
    double first, second;  // normal: mean and deviation; the others: from the first to below the second
  };
  /// A number may be `absolute + relative * |recorded|` away from the recorded one.
  struct Tolerance {
    double relative, absolute;
  };
  /// An argument or a result. It has one of `data`, `tensor` and `drawn`.
  struct Value {
    std::string dtype;  // as JAX names it
    std::vector<std::int64_t> shape;
    /// Its numbers, row by row, little-endian, at any address: narrow ones take a byte each, a random key is two or
    /// four of uint32, float0 nothing.
    std::span<const std::uint8_t> data;
    std::optional<std::size_t> tensor;   // which has these bytes: an index into `Cases::tensors`
    std::optional<Drawn> drawn;          // of an argument
    std::optional<Tolerance> tolerance;  // of a result; nothing: the default of its dtype
  };

  std::string_view name;
  std::size_t vjp_order;         // 0 for a call of the function, 1 for one of its VJP, and so on
  std::vector<Value> arguments;  // flat, without weights
  std::vector<Value> results;    // flat
  std::size_t recording;         // index into `Cases::recordings`
  bool has_trace;                // of its operations, which checks by JAX compare
};

/// The cases of a function and its VJPs. Large arrays are in files of tensors beside the artifact, or in its archive.
struct Cases {
  /// Where calls were made: names and texts, such as "jax" and "0.10.2", by ascending names.
  using Recording = std::vector<std::pair<std::string_view, std::string_view>>;

  std::vector<Case> all;
  std::vector<Recording> recordings;
  std::vector<Weights::File> files;
  std::vector<Weights::Tensor> tensors;
  /// What the artifact ends with: of the cases, and of the digests of all else that the artifact is. It tells whether
  /// results of these calls belong to it.
  Weights::Digest digest = {};
};

/// A function in a buffer of the caller's, which has to stay where and what it is while this, a VJP, or a view of
/// either is in use.
class Artifact {
 public:
  /// Verifies and checks all of the buffer but the modules' digests. Takes time and memory in proportion to its size,
  /// whatever is in it. Bytes behind the artifact are ignored. Throws DeserializationError.
  explicit Artifact(std::span<const std::uint8_t> buffer);

  std::string_view function_name() const;
  std::vector<std::string_view> platforms() const;
  std::uint32_t nr_devices() const;
  std::vector<Value> arguments() const;
  std::vector<Value> results() const;
  /// How a call in Python takes the arguments, and returns the results; the first tree is a pair, (args, kwargs).
  /// Leaves are in the order of `arguments()` and `results()`.
  std::vector<Node> argument_tree() const;
  std::vector<Node> result_tree() const;
  /// Nothing where the artifact says of no arguments where they are. Throws DeserializationError where it says what
  /// does not fit the signature.
  std::optional<Weights> weights() const;
  /// Those of the function and its VJPs, also where this is a VJP; none where nothing was recorded. They fit the
  /// signatures.
  Cases cases() const;
  /// Sets of sizes of all dimension variables, for which the function was saved to be compiled; none where it has no
  /// such variables, or nobody has said. They were not compared with the variables.
  std::vector<std::map<std::string, std::int64_t>> sizes() const;
  /// The dimension variables, by ascending name, along which arguments may be larger, with zeros behind their elements:
  /// results begin with what they are without these. Whoever saved the artifact has said so, for the function and its
  /// VJPs; none where nobody has. They were not compared with the variables.
  std::vector<std::string_view> padded() const;
  /// The keys of the first positional argument, where it is a dict of arrays, which a file of tensors can give. Those
  /// of the function for a VJP too, whose first arguments are the same arrays.
  std::vector<std::string_view> names_of_first_argument() const;
  std::vector<std::uint32_t> kept_arguments() const;  // indices of those that the module's main function takes
  std::vector<std::string_view> ordered_effects() const;
  std::vector<std::string_view> unordered_effects() const;
  /// "platform", "shape_assertions", or "custom_call " and a target.
  std::vector<std::string> disabled_checks() const;
  /// Whether the module is to be refined for the shapes of the arguments before it is compiled.
  bool has_dynamic_shapes() const;
  unsigned calling_convention_version() const;

  std::string_view writer() const;                      // releases of JAX, such as "0.8.2 to 0.9.0.1"
  std::optional<std::string_view> jax_version() const;  // the release itself, since 0.11.1
  bool has_trailer() const;

  /// The StableHLO module, as MLIR bytecode. Checks its digest where the artifact has a trailer, the first time.
  /// Throws DeserializationError.
  std::span<const std::uint8_t> module() const;

  std::optional<Artifact> vjp() const;

 private:
  friend class Archive;
  struct State;
  /// Finds the bytes of a tensor.
  using FindTensor = std::function<std::span<const std::uint8_t>(const Weights::Digest& digest)>;
  /// Of an archive's member whose modules are stored apart from it, if there are any.
  Artifact(std::span<const std::uint8_t> buffer, std::span<const std::span<const std::uint8_t>> modules,
           const FindTensor& find_tensor, bool is_copied);
  Artifact(std::shared_ptr<const State> state, std::size_t order);

  std::shared_ptr<const State> state_;
  std::size_t order_ = 0;  // how many VJPs deep
};

}  // namespace jaxexp
