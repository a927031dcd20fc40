#include "bindings/call/arguments.h"

namespace jaxexp::bindings {
namespace {

/// Counts how deep the current thread is in nested data; where that is too deep, throws RecursionError.
class Level {
 public:
  Level() {
    if (Py_EnterRecursiveCall(" in the arguments of a call")) throw nb::python_error();
  }
  ~Level() { Py_LeaveRecursiveCall(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
};

}  // namespace

bool Arguments::is_plain(nb::handle tree) const {
  PyTypeObject* const type = Py_TYPE(tree.ptr());
  if (type == reinterpret_cast<PyTypeObject*>(array_.ptr())) return true;
  if (type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type || type == &PyComplex_Type) return true;
  if (tree.is_none()) return true;
  if (type == reinterpret_cast<PyTypeObject*>(ndarray_.ptr()))
    return nb::object(tree.attr(dtype_).attr(is_native_)).is(nb::handle(Py_True));
  if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(number_.ptr()))) return true;
  const Level level;
  if (type == &PyTuple_Type || is_namedtuple(tree)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tree.ptr()); ++i)
      if (!is_plain(PyTuple_GET_ITEM(tree.ptr(), i))) return false;
    return true;
  }
  // The functions of a custom node may change what holds it: so these two are read anew at each step.
  if (type == &PyList_Type) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tree.ptr()); ++i)
      if (!is_plain(nb::borrow(PyList_GET_ITEM(tree.ptr(), i)))) return false;
    return true;
  }
  if (type == &PyDict_Type) {
    PyObject* value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(tree.ptr(), &at, nullptr, &value);)
      if (!is_plain(nb::borrow(value))) return false;
    return true;
  }
  return is_other_node_plain(tree);
}

/// Flattening one takes longer than the rest of the check.
bool Arguments::is_namedtuple(nb::handle tree) const {
  if (!PyTuple_Check(tree.ptr())) return false;
  const int is_registered = PyDict_Contains(registered_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(tree.ptr())));
  if (is_registered < 0) throw nb::python_error();
  return !is_registered && PyObject_HasAttr(tree.ptr(), fields_.ptr());
}

/// A leaf of another type is not plain, nor is a node whose own functions fail: jit will say what is wrong with it.
bool Arguments::is_other_node_plain(nb::handle tree) const {
  try {
    const nb::object node = flatten_one_level_(tree);
    if (node.is_none()) return false;
    for (nb::handle child : nb::object(node[0]))
      if (!is_plain(child)) return false;
    return true;
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return false;
  }
}

}  // namespace jaxexp::bindings
