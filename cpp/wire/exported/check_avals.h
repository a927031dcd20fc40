// Abstract values: their kinds, and dimensions as JAX prints them.
#pragma once

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/exported/seen.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

class AvalCheck {
 public:
  /// `root` is for errors.
  explicit AvalCheck(const schema::Exported& root) : root_(root) {}

  void check(const schema::AbstractValue& aval, const Path& path);

  /// Whether one of the values has a symbolic dimension. They have to be checked.
  bool is_symbolic(const Values& v) const;

 private:
  const schema::Exported& root_;
  Seen avals_, symbolic_, dimensions_;
};

}  // namespace jaxexp::wire
