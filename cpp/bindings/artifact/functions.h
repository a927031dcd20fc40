// From artifacts to the functions of Python.
#pragma once

#include "bindings/artifact/artifact.h"

namespace jaxexp::bindings {

/// Makes an Exported of each artifact. Its fields are decoded when somebody looks at them.
class Functions {
 public:
  /// `makes` has what makes objects: `Exported`, `LoadedVjp` and `metadata_from_json`.
  explicit Functions(nb::handle makes);

  /// Of an artifact that is prepared.
  nb::object function(Artifact artifact) const;
  /// Of the artifact in a buffer, which is verified and prepared.
  nb::object read(nb::handle buffer) const;

 private:
  nb::object exported_, loaded_vjp_, metadata_from_json_;
  nb::object artifact_name_, get_vjp_name_, nothing_;
};

}  // namespace jaxexp::bindings
