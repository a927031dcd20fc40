// The semantic pass over an artifact, its VJPs included.
#include "wire/exported/check.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/base/error.h"
#include "wire/exported/check_avals.h"
#include "wire/exported/check_shardings.h"
#include "wire/exported/check_trees.h"
#include "wire/exported/check_values.h"
#include "wire/exported/check_vjp.h"
#include "wire/exported/limits.h"
#include "wire/exported/requirements.h"
#include "wire/exported/same.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

using std::to_string;

void check_versions(const schema::Exported& e, const Path& path) {
  if (e.serialization_version() == 0) throw Error({&path, "serialization_version"}, "a version from 1", "0");
  if (const std::uint32_t version = e.calling_convention_version();
      version < oldest_calling_convention || version > newest_calling_convention)
    throw Error(
        {&path, "calling_convention_version"},
        "a version from " + to_string(oldest_calling_convention) + " to " + to_string(newest_calling_convention),
        to_string(version));
}

void check_device_counts(const schema::Exported& e, const Path& path) {
  const int count = e.nr_devices_short();
  if (count < 0) throw Error({&path, "nr_devices_short"}, "a positive number of devices", to_string(count));
  if (device_count(e) == 0) throw Error({&path, "nr_devices"}, "a positive number of devices", "0");
  if (count > 0 && e.nr_devices() > 0 && e.nr_devices() != static_cast<std::uint32_t>(count))
    throw Error({&path, "nr_devices_short"}, to_string(e.nr_devices()) + ", the other number of devices",
                to_string(count));
}

/// Only an effect's type is stored, so two effects of one type cannot be told apart.
void check_effects(const flatbuffers::Vector<flatbuffers::Offset<schema::Effect>>* effects, const Path& path) {
  std::vector<std::string_view> names;
  each(effects, *path.parent, path.name, [&](const auto& effect, const Path& p) {
    names.push_back(required(effect.type_name(), p, "type_name").string_view());
  });
  require_distinct(std::move(names), path, "effect");
}

void check_kept_arguments(const schema::Exported& e, std::uint32_t arguments, const Path& path) {
  const auto* kept = e.module_kept_var_idx();
  for (std::uint32_t i = 0; i < Values::length(kept); ++i) {
    const Path where{&path, "module_kept_var_idx", i};
    require_index(kept->Get(i), arguments, where);
    if (i > 0 && kept->Get(i - 1) >= kept->Get(i))
      throw Error(where, "indices in ascending order",
                  to_string(kept->Get(i)) + " after " + to_string(kept->Get(i - 1)));
  }
}

/// The parts of the check, which know the tables that all functions of an artifact share.
class Check {
 public:
  Check(const schema::Exported& root, std::size_t buffer_size)
      : root_(root),
        comparison_(max_comparisons(buffer_size)),
        avals_(root),
        shardings_(root, comparison_),
        values_(root, avals_, shardings_, comparison_),
        trees_(root, buffer_size) {}

  void exported(const schema::Exported& e, const Path& path) {
    shardings_.begin_function();
    trees_.begin_function();
    required(e.function_name(), path, "function_name");
    required(e.mlir_module_serialized(), path, "mlir_module_serialized");
    check_versions(e, path);
    require_distinct(e.platforms(), {&path, "platforms"}, "platform");
    if (Values::length(e.platforms()) == 0) throw Error({&path, "platforms"}, "at least one platform", "none");
    check_device_counts(e, path);

    distinct_tables(e, path);
    values_.arguments(e, path);
    values_.results(e, path);
    trees_.arguments(e.in_tree(), Values::arguments(e).size(), {&path, "in_tree"});
    trees_.results(e.out_tree(), Values::results(e).size(), {&path, "out_tree"});

    check_effects(e.ordered_effects(), {&path, "ordered_effects"});
    check_effects(e.unordered_effects(), {&path, "unordered_effects"});
    disabled_checks(e, path);
    check_kept_arguments(e, Values::arguments(e).size(), path);
    global_constants(e, path);
    if (const auto* vjp = e.vjp()) {
      const Path inner{&path, "vjp"};
      if (++order_ > max_vjp_order) throw Error(inner, "at most " + to_string(max_vjp_order) + " VJPs", "more");
      exported(*vjp, inner);
      check_vjp(e, *vjp, inner, comparison_);
    }
  }

 private:
  void distinct_tables(const schema::Exported& e, const Path& path) {
    each(e.unique_avals(), path, "unique_avals", [&](const auto& aval, const Path& p) { avals_.check(aval, p); });
    each(e.unique_abstract_meshes(), path, "unique_abstract_meshes",
         [&](const auto& mesh, const Path& p) { shardings_.mesh(mesh, p); });
    each(e.unique_named_shardings(), path, "unique_named_shardings",
         [&](const auto& sharding, const Path& p) { shardings_.named_sharding(sharding, e, p); });
  }

  void disabled_checks(const schema::Exported& e, const Path& path) const {
    each(e.disabled_checks(), path, "disabled_checks", [&](const auto& disabled, const Path& p) {
      require_known(root_, "a kind of safety check", disabled.kind(), schema::DisabledSafetyCheckKind::shape_assertions,
                    p, "kind");
      if (disabled.kind() == schema::DisabledSafetyCheckKind::custom_call &&
          required(disabled.custom_call_target(), p, "custom_call_target").size() == 0)
        throw Error({&p, "custom_call_target"}, "the name of a custom call's target", "an empty string");
    });
  }

  /// A module for several platforms or shapes depends on constants that its caller defines.
  void global_constants(const schema::Exported& e, const Path& path) const {
    if (e.uses_global_constants()) return;
    const bool many = Values::length(e.platforms()) > 1;
    if (many || avals_.is_symbolic(Values::arguments(e)) || avals_.is_symbolic(Values::results(e)))
      throw Error({&path, "uses_global_constants"},
                  many ? "true, as there are several platforms" : "true, as there are symbolic dimensions", "false");
  }

  const schema::Exported& root_;
  Comparison comparison_;
  AvalCheck avals_;
  ShardingCheck shardings_;
  ValueCheck values_;
  TreeCheck trees_;
  std::size_t order_ = 0;  // of the VJP that is being checked
};

}  // namespace

void check(const schema::Exported& root, std::size_t buffer_size) { Check(root, buffer_size).exported(root, {}); }

}  // namespace jaxexp::wire
