// Fuzz target: the reader that C++ programs link to; all that it shows of an artifact, VJPs and modules included.
#include <jaxexp/artifact.h>

#include <string>

#include "target.h"

namespace {

using namespace jaxexp;

void show(const std::vector<Value>& values) {
  for (const Value& value : values) tests::require(tests::is_utf8(value.str()), "a value can be shown");
}

/// How many there are, where all nodes have the children that they say.
std::size_t leaves(const std::vector<Node>& nodes) {
  std::size_t missing = 1, found = 0;
  for (const Node& node : nodes) {
    tests::require(missing > 0, "a tree ends with its last node");
    missing += node.nr_children - 1;
    if (node.kind == Node::Kind::dict) tests::require(node.keys.size() == node.nr_children, "a child has a key");
    if (node.kind == Node::Kind::leaf) ++found;
  }
  tests::require(missing == 0, "all children are there");
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    std::optional<Artifact> artifact(std::in_place, std::span(data, size));
    while (artifact) {
      tests::require(tests::is_utf8(artifact->function_name()), "a name is UTF-8");
      tests::require(!artifact->platforms().empty() && artifact->nr_devices() > 0, "there are platforms and devices");
      const std::vector<Value> arguments = artifact->arguments();
      show(arguments);
      show(artifact->results());
      tests::require(leaves(artifact->argument_tree()) == arguments.size(), "an argument is a leaf");
      tests::require(leaves(artifact->result_tree()) == artifact->results().size(), "a result is a leaf");
      for (const std::uint32_t index : artifact->kept_arguments())
        tests::require(index < arguments.size(), "what is kept is an argument");
      for (const auto& effects : {artifact->ordered_effects(), artifact->unordered_effects()})
        for (const std::string_view effect : effects) tests::require(tests::is_utf8(effect), "an effect is UTF-8");
      tests::require(!artifact->writer().empty(), "a writer is named");
      std::uint32_t sum = 0;
      for (const std::uint8_t byte : artifact->module()) sum += byte;
      static_cast<void>(sum);
      artifact = artifact->vjp();
    }
  } catch (const DeserializationError& error) {
    tests::require(!error.expected().empty() && !error.found().empty(), "an error says what was expected and found");
    tests::require(tests::is_utf8(error.what()) && std::string_view(error.what()).size() < 3000, "and can be shown");
  }
  return 0;
}
