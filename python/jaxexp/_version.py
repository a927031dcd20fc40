"""The version of jaxexp: the build, the wheel and the C++ libraries take it from here."""

__version__ = "0.1.0"
