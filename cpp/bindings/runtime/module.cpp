// jaxexp._runtime: a table of contents.
#include "bindings/runtime/define.h"

NB_MODULE(_runtime, m) {
  using namespace jaxexp::bindings;

  m.doc() = "Functions that run on PJRT plugins: cpp/runtime. Nothing here needs JAX.";
#ifdef NDEBUG
  nb::set_leak_warnings(false);  // sessions in variables of modules live at exit
#endif
  translate_runtime_errors();
  define_runtime_array(m);
  define_program(m);
  define_function(m);
  define_plugin(m);
}
