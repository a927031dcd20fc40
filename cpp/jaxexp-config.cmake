# For find_package(jaxexp): the targets jaxexp::wire, jaxexp::runtime, and jaxexp::c for C.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/jaxexp-targets.cmake")
