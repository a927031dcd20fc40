# For find_package(jaxexp): the targets jaxexp::wire, jaxexp::runtime, and jaxexp::c for C.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/../jaxexp_wire/jaxexp_wire-config.cmake")  # which find_package(jaxexp_wire) finds, too
include("${CMAKE_CURRENT_LIST_DIR}/jaxexp-targets.cmake")
