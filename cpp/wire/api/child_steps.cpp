#include "wire/api/child_steps.h"

#include <string_view>

#include "wire/base/error.h"
#include "wire/exported/leaf_paths.h"
#include "wire/exported/library_node.h"
#include "wire/exported/values.h"
#include "wire/tensors/json.h"

namespace jaxexp::wire {
namespace {

using Kind = JsonValue::Kind;

std::string attribute(std::string_view name) { return '.' + shortened(name, longest_path); }

/// The steps to the children of a node that auxiliary data describes.
class Described {
 public:
  explicit Described(std::string_view data) {
    read_json_object(data, "a description", "names", /*takes_all_numbers=*/true,
                     [&](const JsonPath& path, const JsonValue& value) { take(path, value); });
  }

  std::vector<std::string> steps;

 private:
  void take(const JsonPath& path, const JsonValue& value) {
    if (path.empty() || path[0] != "keys" || path.size() < 2) return;
    if (path.size() == 3) {  // inside of ["item", key]
      if (value.kind == Kind::text && ++parts_ == 2) steps.push_back(key_step(value.text));
      if ((value.kind == Kind::natural || value.kind == Kind::other) && ++parts_ == 2)
        steps.push_back('[' + value.text + ']');
    } else if (value.kind == Kind::text) {
      steps.push_back(attribute(value.text));
    } else if (value.kind == Kind::array) {
      parts_ = 0;
    } else if (value.kind == Kind::other) {  // null
      steps.push_back(child_step(static_cast<std::uint32_t>(steps.size())));
    }
  }

  int parts_ = 0;
};

/// The texts of a JSON list of texts; none where the data is something else.
std::vector<std::string> listed(std::string_view data) {
  std::vector<std::string> texts;
  bool all_texts = true;
  read_json_object("{\"\":" + std::string(data) + '}', "a list", "names", /*takes_all_numbers=*/true,
                   [&](const JsonPath& path, const JsonValue& value) {
                     if (path.size() == 2 && value.kind == Kind::text)
                       texts.push_back(value.text);
                     else if (path.size() >= 2 && value.kind != Kind::end)
                       all_texts = false;
                   });
  if (!all_texts) texts.clear();
  return texts;
}

std::vector<std::string> read(const schema::PyTreeDef& node, std::string_view data) {
  if (is_library_node(node)) return Described(data).steps;
  // What `register_namedtuple_serialization` stores, and JAX for an OrderedDict.
  std::vector<std::string> steps = listed(data);
  const bool is_dict = node.custom_name()->string_view() == std::string_view("collections.OrderedDict");
  for (std::string& step : steps) step = is_dict ? key_step(step) : attribute(step);
  return steps;
}

}  // namespace

std::string key_step(std::string_view whole) {
  const std::string key = shortened(whole, longest_path);
  const char quote = key.find('\'') != key.npos && key.find('"') == key.npos ? '"' : '\'';
  std::string text{'[', quote};
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\')
      (text += '\\') += c;
    else if (c == '\n' || c == '\r' || c == '\t')
      (text += '\\') += c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
    else if (byte < ' ' || byte == 0x7F)
      text += escaped({&c, 1});
    else
      text += c;
  }
  return (text += quote) += ']';
}

std::string ChildSteps::step(const schema::PyTreeDef& node, std::uint32_t i) {
  const auto* data = node.custom_auxdata();
  if (!data) return child_step(i);
  // Nodes of several kinds may share data, and have other names for it; data lies at multiples of 4.
  const std::string_view name = node.custom_name()->string_view();
  const std::uint64_t kind = is_library_node(node) ? 1 : name == std::string_view("collections.OrderedDict") ? 2 : 0;
  auto [steps, is_new] = known_.insert(reinterpret_cast<std::uintptr_t>(data) + kind);
  if (is_new) {
    try {
      steps = read(node, {reinterpret_cast<const char*>(data->data()), data->size()});
    } catch (const TensorsError&) {  // data of another kind, which has no names
    }
  }
  return steps.size() == Values::length(node.children()) ? steps[i] : child_step(i);
}

}  // namespace jaxexp::wire
