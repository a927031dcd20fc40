// The arguments or the results of a function, in either layout: indices, copies, and a sharding for each.
#pragma once

#include <cstdint>
#include <string_view>

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/exported/check_avals.h"
#include "wire/exported/check_shardings.h"
#include "wire/exported/same.h"
#include "wire/exported/seen.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

class ValueCheck {
 public:
  ValueCheck(const schema::Exported& root, AvalCheck& avals, ShardingCheck& shardings, Comparison& comparison)
      : avals_(avals), shardings_(shardings), comparison_(comparison), sharded_avals_(&root) {}

  void arguments(const schema::Exported& e, const Path& path) {
    values(Values::arguments(e), e, path, {"in_avals", "in_avals_idxs", "in_shardings", "in_shardings_idxs"});
  }
  void results(const schema::Exported& e, const Path& path) {
    values(Values::results(e), e, path, {"out_avals", "out_avals_idxs", "out_shardings", "out_shardings_idxs"});
  }

 private:
  struct Names {
    std::string_view avals, aval_indices, shardings, sharding_indices;
  };

  void values(const Values& v, const schema::Exported& e, const Path& path, const Names& names);
  /// Writers since JAX 0.10.0 list all avals beside the distinct ones. Readers go by the indices, or by the list.
  void listed_avals(const Values& v, const Path& path);
  void listed_shardings(const Values& v, const schema::Exported& e, const Path& path);
  void fit(const Values& v, const Path& path, const Names& names);

  AvalCheck& avals_;
  ShardingCheck& shardings_;
  Comparison& comparison_;
  SeenPairs sharded_avals_;
};

}  // namespace jaxexp::wire
