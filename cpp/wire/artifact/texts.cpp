// Trees share subtrees, each of which is looked at once.
#include "wire/artifact/texts.h"

#include <set>
#include <string_view>
#include <tuple>

#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/chain.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

class Look {
 public:
  explicit Look(std::vector<Texts::Node>& found) : found_(found) {}

  void tree(const schema::PyTreeDef& node, const Path& path) {
    if (node.kind() == schema::PyTreeDefKind::leaf) return;
    if (!seen_.insert(reinterpret_cast<std::uintptr_t>(&node)).second) return;
    if (node.kind() == schema::PyTreeDefKind::custom) custom(node, path);
    for (std::uint32_t i = 0; i < Values::length(node.children()); ++i)
      tree(*node.children()->Get(i), {&path, "children", i});
  }

 private:
  void custom(const schema::PyTreeDef& node, const Path& path) {
    const std::string_view name = node.custom_name()->string_view();
    if (!name.starts_with("jaxexp.") && name != "collections.OrderedDict") return;
    const auto* const data = node.custom_auxdata();
    const std::uint32_t children = Values::length(node.children());
    if (!known_.emplace(data, name, children).second) return;
    Texts::Node& found = found_.emplace_back(Texts::Node{path.str(), std::string(name), {}, children});
    if (data) found.data.assign(reinterpret_cast<const char*>(data->data()), data->size());
  }

  std::vector<Texts::Node>& found_;
  FlatMap<Nothing> seen_;
  std::set<std::tuple<const void*, std::string_view, std::uint32_t>> known_;
};

}  // namespace

Texts texts_of(const Opened& opened) {
  Texts texts;
  if (opened.trailer()) {
    const auto* const metadata = opened.trailer()->content().metadata();
    for (std::uint32_t i = 0; i < Values::length(metadata); ++i)
      texts.metadata.emplace_back(metadata->Get(i)->key()->str(), metadata->Get(i)->value()->str());
  }
  Look look(texts.nodes);
  for (const auto& [order, function] : Chain(opened.root())) {
    const std::string of_function = path_in_chain(order);
    const Path path{nullptr, of_function};
    look.tree(*function.in_tree(), {&path, "in_tree"});
    look.tree(*function.out_tree(), {&path, "out_tree"});
  }
  return texts;
}

}  // namespace jaxexp::wire
