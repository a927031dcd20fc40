// The check of a module, what is in it, and its head.
#include "bindings/base/define.h"

#include "bindings/bytecode/module.h"

namespace jaxexp::bindings {

void define_bytecode(nb::module_& m) {
  m.def("check_bytecode", &check_bytecode, "module"_a,
        nb::sig("def check_bytecode(module: typing_extensions.Buffer) -> None"),
        "Refuses the bytes of a module that MLIR's reader cannot be trusted with.");
  m.def("contents", &contents, "module"_a,
        nb::sig("def contents(module: typing_extensions.Buffer) -> "
                "tuple[dict[str, int], dict[str, int] | None] | None"),
        "How often each kind of operation, and each target of a custom call, occurs in a module, after the same check; "
        "None, or None for the targets, where it is written in a way that is not known here.");
  m.def("module_producer", &module_producer, "module"_a,
        nb::sig("def module_producer(module: typing_extensions.Buffer) -> str | None"),
        "Who wrote a module; None where the bytes are no MLIR bytecode.");
  m.def("module_may_name", &module_may_name, "module"_a, "names"_a,
        nb::sig("def module_may_name(module: typing_extensions.Buffer, *names: str) -> bool"),
        "Whether one of these may be the name of an operation, an attribute or a symbol in a module.");
  m.def("module_head", &module_head, "module"_a,
        nb::sig("def module_head(module: typing_extensions.Buffer) -> "
                "tuple[str, frozenset[str], frozenset[str], frozenset[tuple[str, int]], frozenset[tuple[str, int]]]"),
        "The head of a module: its producer; dialects and operations; kinds of attributes and of types, each a dialect "
        "and the number that it has for the kind.");
}

}  // namespace jaxexp::bindings
