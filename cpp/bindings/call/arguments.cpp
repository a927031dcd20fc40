// The arguments of an eager call, looked at before jit's own dispatch gets them.
#include <utility>

#include "bindings/base/define.h"
#include "bindings/base/objects.h"

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

/// Knows the leaves that jit's dispatch reads right: device arrays, the numbers of Python and NumPy, and NumPy arrays
/// in the machine's byte order. Once a function is compiled, the dispatch looks only at the dtype's kind and size: it
/// takes big-endian numbers for others, and forgets the mask of a masked array.
class Arguments {
 public:
  /// `array`, `ndarray` and `number` are the types of device arrays, of NumPy's arrays and of its numbers. `registry`
  /// knows all pytree nodes, and `registered` has the types that were registered: of other namedtuples, the children
  /// are the items.
  Arguments(nb::object array, nb::object ndarray, nb::object number, nb::handle registry, nb::dict registered)
      : array_(std::move(array)),
        ndarray_(std::move(ndarray)),
        number_(std::move(number)),
        flatten_one_level_(registry.attr("flatten_one_level")),
        registered_(std::move(registered)),
        fields_(owned(PyUnicode_InternFromString("_fields"))),
        dtype_(owned(PyUnicode_InternFromString("dtype"))),
        is_native_(owned(PyUnicode_InternFromString("isnative"))) {}

  bool are_plain(const nb::tuple& args, const nb::dict& kwargs) const { return is_plain(args) && is_plain(kwargs); }

 private:
  bool is_plain(nb::handle tree) const {
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
  bool is_namedtuple(nb::handle tree) const {
    if (!PyTuple_Check(tree.ptr())) return false;
    const int is_registered = PyDict_Contains(registered_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(tree.ptr())));
    if (is_registered < 0) throw nb::python_error();
    return !is_registered && PyObject_HasAttr(tree.ptr(), fields_.ptr());
  }

  /// A leaf of another type is not plain, nor is a node whose own functions fail: jit will say what is wrong with it.
  bool is_other_node_plain(nb::handle tree) const {
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

  nb::object array_, ndarray_, number_, flatten_one_level_, registered_, fields_, dtype_, is_native_;
};

}  // namespace

void define_call(nb::module_& m) {
  nb::class_<Arguments>(m, "Arguments", "Knows the arguments that the dispatch of a jitted function reads right.")
      .def(nb::init<nb::type_object, nb::type_object, nb::type_object, nb::handle,
                    Argument<nb::dict, nb::type_object, nb::any>>(),
           "array"_a, "ndarray"_a, "number"_a, "registry"_a, "registered"_a)
      .def(
          "are_plain", &Arguments::are_plain,
          nb::sig("def are_plain(self, args: tuple[object, ...], kwargs: dict[str, object], /) -> bool"),
          "Whether every leaf is a device array, a number of Python or NumPy, or a NumPy array in the machine's byte order. "
          "No need not be a mistake: leaves of other types have to be looked at one by one.");
}

}  // namespace jaxexp::bindings
