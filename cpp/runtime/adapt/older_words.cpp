// The words that changed since StableHLO 1.13, of those that JAX's exports have.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

using refine::Block;
using refine::Id;
using refine::Integers;
using refine::MeshAxes;
using refine::Operation;
using refine::Tables;

constexpr std::string_view with_groups[] = {"all_gather", "all_reduce", "all_to_all", "collective_broadcast",
                                            "reduce_scatter"};
constexpr std::array<std::string_view, 8> of_custom_calls = {
    "api_version",     "backend_config",  "call_target_name",       "called_computations",
    "has_side_effect", "operand_layouts", "output_operand_aliases", "result_layouts"};

/// The axes of a mesh, the first one being the slowest.
using Mesh = std::vector<std::pair<std::string_view, std::int64_t>>;

class Translator {
 public:
  explicit Translator(Tables& tables) : tables_(tables) {}

  /// Whether anything was changed.
  bool change(Block& top) {
    for (const Operation& module : top.operations)
      for (const auto& region : module.regions)
        for (const Block& block : region)
          for (const Operation& one : block.operations) look_at(one);
    return change_all(top);
  }

 private:
  /// Axes of a mesh are said in words of StableHLO, too, which an attribute of the mesh has.
  void look_at(const Operation& operation) {
    if (tables_.kind(operation.kind).full_name() != "sdy.mesh") return;
    const auto name = tables_.symbol(operation);
    const auto said = tables_.attribute(operation, "stablehlo.mesh");
    const auto axes = said ? tables_.in_dictionary(*said, "axes") : std::nullopt;
    if (!name || !axes || tables_.in_dictionary(*said, "device_ids")) return;
    Mesh mesh;
    for (const Id axis : tables_.array(*axes)) {
      const auto called = tables_.in_dictionary(axis, "name"), size = tables_.in_dictionary(axis, "size");
      if (!called || !size) return;
      mesh.emplace_back(tables_.text(*called), tables_.integer(*size));
    }
    meshes_.emplace(*name, std::move(mesh));
  }

  bool change_all(Block& block) {
    bool is_changed = false;
    for (Operation& one : block.operations) {
      const Tables::Kind& kind = tables_.kind(one.kind);
      if (kind.is_vhlo && kind.name == "custom_call_v2") is_changed |= change_call(one);
      if (kind.is_vhlo && kind.name == "composite_v2" && one.regions.empty()) {
        one.kind = tables_.vhlo_kind("composite_v1");  // which has the same attributes, and no regions
        is_changed = true;
      }
      if (kind.is_vhlo && std::ranges::find(with_groups, kind.base) != std::end(with_groups))
        is_changed |= change_groups(one);
      for (auto& region : one.regions)
        for (Block& inside : region) is_changed |= change_all(inside);
    }
    return is_changed;
  }

  bool change_call(Operation& call) {
    if (!call.properties || !tables_.array(tables_.needed(call, "result_tilings")).empty()) return false;
    refine::Named attributes;
    for (const std::string_view name : of_custom_calls) attributes.emplace_back(name, tables_.needed(call, name));
    // What belongs to no property stays: custom calls of GPUs and of Shardy have such attributes.
    const auto others = call.dictionary;
    tables_.set_attributes(call, std::move(attributes));
    call.dictionary = others;
    call.kind = tables_.vhlo_kind("custom_call_v1");
    return true;
  }

  bool change_groups(Operation& operation) {
    const Id said = tables_.needed(operation, "replica_groups");
    const auto [known, is_new] = numbers_of_.try_emplace(said);
    if (is_new) known->second = numbers_of(said);
    if (known->second) tables_.replace_attribute(operation, "replica_groups", *known->second);
    return known->second.has_value();
  }

  /// Groups of devices by their numbers, where they are said by axes of a mesh that is known.
  std::optional<Id> numbers_of(Id said) {
    const auto axes = tables_.mesh_axes(said);
    const auto mesh = axes ? meshes_.find(axes->mesh) : meshes_.end();
    if (mesh == meshes_.end()) return std::nullopt;
    const auto groups = groups_of(mesh->second, axes->axes);
    if (groups.empty()) return std::nullopt;
    Integers devices;
    for (const auto& [others, group] : groups) devices.insert(devices.end(), group.begin(), group.end());
    const auto count = static_cast<std::int64_t>(groups.size());
    return tables_.sizes_attribute(devices, {count, static_cast<std::int64_t>(devices.size()) / count});
  }

  /// The devices of each group in their order, by where the group is on the other axes. None where an axis is not
  /// known.
  std::map<Integers, Integers> groups_of(const Mesh& mesh, const std::vector<MeshAxes::Axis>& axes) {
    constexpr std::int64_t of_each_device = 8;  // beside its numbers
    const auto each = static_cast<std::int64_t>(mesh.size() + axes.size()) + of_each_device;
    const std::int64_t most = numbers_left_ / each;
    std::int64_t count = 1;
    for (const auto& [name, size] : mesh) {
      if (size < 1 || size > most / count) return {};
      count *= size;
    }
    numbers_left_ -= count * each;
    std::map<std::string_view, std::size_t> places_in_mesh;
    for (std::size_t i = 0; i < mesh.size(); ++i) places_in_mesh.emplace(mesh[i].first, i);
    std::vector<std::size_t> places_of_axes;
    for (const MeshAxes::Axis& axis : axes) {
      const auto found = places_in_mesh.find(axis.name);
      if (found == places_in_mesh.end()) return {};
      places_of_axes.push_back(found->second);
    }
    std::map<Integers, std::vector<std::pair<Integers, std::int64_t>>> places;
    for (std::int64_t device = 0; device < count; ++device) {
      Integers others(mesh.size()), place;
      std::int64_t left = device;
      for (std::size_t i = mesh.size(); i-- > 0; left /= mesh[i].second) others[i] = left % mesh[i].second;
      for (std::size_t a = 0; a < axes.size(); ++a) {
        const std::int64_t whole = mesh[places_of_axes[a]].second;
        std::int64_t& at = others[places_of_axes[a]];
        const auto [before, size] = axes[a].part.value_or(std::pair<std::int64_t, std::int64_t>(1, whole));
        if (before < 1 || size < 1 || before > whole || size > whole / before) return {};
        const std::int64_t behind = whole / (before * size), index = at / behind % size;
        place.push_back(index);
        at -= index * behind;
      }
      places[others].emplace_back(std::move(place), device);
    }
    std::map<Integers, Integers> groups;
    for (auto& [others, group] : places) {
      std::ranges::sort(group);
      for (const auto& [place, device] : group) groups[others].push_back(device);
    }
    return groups;
  }

  Tables& tables_;
  std::map<std::string_view, Mesh> meshes_;
  std::map<Id, std::optional<Id>> numbers_of_;  // what says groups, by what said them
  std::int64_t numbers_left_ = 1 << 22;         // that are made of devices, for all groups together
};

}  // namespace

bool may_have_older_words(std::string_view operation) {
  constexpr std::string_view dialect = "vhlo.";
  if (!operation.starts_with(dialect)) return false;
  operation.remove_prefix(dialect.size());
  return operation == "custom_call_v2" || operation == "composite_v2" ||
         std::ranges::any_of(with_groups, [&](std::string_view base) { return operation.starts_with(base); });
}

std::optional<std::vector<std::uint8_t>> with_older_words(std::span<const std::uint8_t> module,
                                                          const wire::Path& where) {
  refine::Parts parts(module, where);
  Block top = parts.code().top;
  if (!Translator(parts.tables()).change(top)) return std::nullopt;
  return parts.written(top);
}

}  // namespace jaxexp::runtime::adapt
