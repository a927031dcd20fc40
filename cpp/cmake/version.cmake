# JAXEXP_VERSION, which python/jaxexp/_version.py says for everything that is built here.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../python/jaxexp/_version.py" JAXEXP_VERSION REGEX "^__version__ = ")
string(REGEX REPLACE "^__version__ = \"([0-9.]+).*" "\\1" JAXEXP_VERSION "${JAXEXP_VERSION}")
