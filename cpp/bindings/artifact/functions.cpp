// Like the constructor of Exported for functions that were loaded: nothing is checked or copied again.
#include "bindings/artifact/functions.h"

#include <utility>

#include "bindings/base/owned.h"

namespace jaxexp::bindings {
namespace {

nb::object interned(const char* name) { return owned(PyUnicode_InternFromString(name)); }

/// Whatever the class says of setting attributes: it is frozen.
void set(const nb::object& object, const nb::object& name, const nb::object& value) {
  if (PyObject_GenericSetAttr(object.ptr(), name.ptr(), value.ptr()) != 0) throw nb::python_error();
}

}  // namespace

Functions::Functions(nb::handle makes)
    : exported_(makes.attr("Exported")),
      loaded_vjp_(makes.attr("LoadedVjp")),
      metadata_from_json_(makes.attr("metadata_from_json")),
      artifact_name_(interned("_artifact")),
      get_vjp_name_(interned("_get_vjp")),
      nothing_(nb::make_tuple()) {}

nb::object Functions::function(Artifact artifact) const {
  const bool has_vjp = artifact.has_vjp();
  if (const auto texts = artifact.metadata()) artifact.note(metadata_from_json_(*texts));
  const nb::object held = nb::cast(std::move(artifact));
  auto* const type = reinterpret_cast<PyTypeObject*>(exported_.ptr());
  const nb::object made = owned(PyBaseObject_Type.tp_new(type, nothing_.ptr(), nullptr));
  set(made, artifact_name_, held);
  set(made, get_vjp_name_, has_vjp ? loaded_vjp_(held) : nb::none());
  return made;
}

nb::object Functions::read(nb::handle buffer) const {
  Artifact artifact(buffer);
  artifact.prepare();
  return function(std::move(artifact));
}

}  // namespace jaxexp::bindings
